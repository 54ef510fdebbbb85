import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.BackOff;
import org.springframework.kafka.annotation.EnableKafkaRetryTopic;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.annotation.RetryableTopic;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.support.serializer.DelegatingByTypeSerializer;
import org.springframework.kafka.support.serializer.ErrorHandlingDeserializer;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Listeners that fail: with a recoverer (mail), on its dead letters (mail-dlt), with a recoverer whose headers have other names
 * (fax), with retry topics (push). Keys are int32, values int64; what is not fails to deserialize before a listener sees it.
 */
@Configuration
@EnableKafkaRetryTopic
public class Mailer {
    static String brokers;

    public static void main(String[] args) {
        brokers = args[0];
        new AnnotationConfigApplicationContext(Mailer.class).registerShutdownHook();
    }

    @KafkaListener(topics = "mail", groupId = "mailer", containerFactory = "recovering")
    void mail(ConsumerRecord<Integer, Long> record) {
        throw new IllegalStateException("mail server says " + record.value());
    }

    @KafkaListener(topics = "mail-dlt", groupId = "mail-rescuer", containerFactory = "rescuing")
    void rescue(ConsumerRecord<Long, byte[]> record) {
        throw new UnsupportedOperationException("nobody can rescue a mail");
    }

    @KafkaListener(topics = "fax", groupId = "faxer", containerFactory = "renaming")
    void fax(ConsumerRecord<Integer, Long> record) {
        throw new IllegalStateException("the line is busy");
    }

    @RetryableTopic(attempts = "3", backOff = @BackOff(delay = 100))
    @KafkaListener(topics = "push", groupId = "pusher")
    void push(ConsumerRecord<Integer, Long> record) {
        throw new IllegalStateException("push gateway says " + record.value());
    }

    // Three attempts each, counted in a header.
    ConcurrentKafkaListenerContainerFactory<Object, Object> factory(
            ConsumerFactory<Object, Object> consumers, DeadLetterPublishingRecoverer recoverer) {
        var factory = new ConcurrentKafkaListenerContainerFactory<Object, Object>();
        factory.setConsumerFactory(consumers);
        factory.getContainerProperties().setDeliveryAttemptHeader(true);
        if (recoverer != null) {
            factory.setCommonErrorHandler(new DefaultErrorHandler(recoverer, new FixedBackOff(10, 2)));
        }
        return factory;
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> recovering(KafkaTemplate<Object, Object> template) {
        return factory(typed(), new DeadLetterPublishingRecoverer(template));
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> rescuing(KafkaTemplate<Object, Object> template) {
        // Wants other keys than mail does, so that what failed by its key fails by the listener now, and the reverse.
        var consumers = consumers(Map.of(
            "key.deserializer", ErrorHandlingDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class,
            ErrorHandlingDeserializer.KEY_DESERIALIZER_CLASS, LongDeserializer.class));
        return factory(consumers, new DeadLetterPublishingRecoverer(template));
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> renaming(KafkaTemplate<Object, Object> template) {
        var recoverer = new DeadLetterPublishingRecoverer(template);
        recoverer.setHeaderNamesSupplier(() -> DeadLetterPublishingRecoverer.HeaderNames.Builder
            .original()
            .offsetHeader("acme-offset").timestampHeader("acme-timestamp").timestampTypeHeader("acme-timestamp-type")
            .topicHeader("acme-topic").partitionHeader("acme-partition").consumerGroupHeader("acme-group")
            .exception()
            .keyExceptionFqcn("acme-key-exception").exceptionFqcn("acme-exception").exceptionCauseFqcn("acme-cause")
            .keyExceptionMessage("acme-key-message").exceptionMessage("acme-message")
            .keyExceptionStacktrace("acme-key-stacktrace").exceptionStacktrace("acme-stacktrace")
            .build());
        return factory(typed(), recoverer);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> kafkaListenerContainerFactory() {
        return factory(typed(), null);
    }

    @Bean
    KafkaTemplate<Object, Object> kafkaTemplate() {
        var serializer = new DelegatingByTypeSerializer(Map.of(
            byte[].class, new ByteArraySerializer(), Integer.class, new IntegerSerializer(), Long.class, new LongSerializer()));
        return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(Map.of("bootstrap.servers", brokers), serializer, serializer));
    }

    @Bean
    KafkaAdmin admin() {
        return new KafkaAdmin(Map.of("bootstrap.servers", brokers));
    }

    @Bean
    TaskScheduler scheduler() {
        return new ThreadPoolTaskScheduler();
    }

    static ConsumerFactory<Object, Object> typed() {
        return consumers(Map.of(
            "key.deserializer", ErrorHandlingDeserializer.class,
            "value.deserializer", ErrorHandlingDeserializer.class,
            ErrorHandlingDeserializer.KEY_DESERIALIZER_CLASS, IntegerDeserializer.class,
            ErrorHandlingDeserializer.VALUE_DESERIALIZER_CLASS, LongDeserializer.class));
    }

    static ConsumerFactory<Object, Object> consumers(Map<String, Object> deserializers) {
        Map<String, Object> settings = new HashMap<>(deserializers);
        settings.put("bootstrap.servers", brokers);
        settings.put("auto.offset.reset", "earliest");
        return new DefaultKafkaConsumerFactory<>(settings);
    }
}
