import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;

/**
 * Reads payments: int32 keys, int64 amounts. What is neither fails to deserialize; a processor fails on some amounts, and once in a
 * punctuation, where there is no record. Both go through the handlers that Kafka Streams has for it.
 */
public class Payments {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "payments-app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG, "payments-dlq");
        settings.put(StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        settings.put(StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueProcessingExceptionHandler.class);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("payments", Consumed.with(Serdes.Integer(), Serdes.Long())).process(Booking::new);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        streams.start();
    }

    static class Booking implements Processor<Integer, Long, Void, Void> {
        private boolean audit;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            context.schedule(Duration.ofMillis(200), PunctuationType.WALL_CLOCK_TIME, now -> {
                if (audit) {
                    audit = false;
                    throw new IllegalStateException("the books do not balance");
                }
            });
        }

        @Override
        public void process(Record<Integer, Long> payment) {
            if (payment.value() == null) {
                throw new IllegalStateException();
            }
            if (payment.value() < 0) {
                throw new IllegalArgumentException("amount " + payment.value() + " is negative");
            }
            audit = payment.value() == 0;
        }
    }
}
