import static org.apache.kafka.clients.consumer.AcknowledgeType.ACCEPT;
import static org.apache.kafka.clients.consumer.AcknowledgeType.REJECT;
import static org.apache.kafka.clients.consumer.AcknowledgeType.RELEASE;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Two share groups on one topic, one whose dead letters are copies and one whose are headers alone. Each rejects or releases a
 * record as its value begins; the broker dead-letters what is rejected, or released too often.
 */
public class ShareGroup {
    static final String DELIVERIES = "3";

    public static void main(String[] args) throws Exception {
        String brokers = args[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", brokers))) {
            admin.incrementalAlterConfigs(Map.of(
                    new ConfigResource(ConfigResource.Type.GROUP, "billing"), settings("dlq.billing", false),
                    new ConfigResource(ConfigResource.Type.GROUP, "billing-copy"), settings("dlq.billing-copy", true)))
                .all().get();
        }
        Thread other = new Thread(() -> consume(brokers, "billing-copy"));
        other.start();
        consume(brokers, "billing");
    }

    static Collection<AlterConfigOp> settings(String topic, boolean copy) {
        Map<String, String> settings = Map.of(
            "share.auto.offset.reset", "earliest",
            "share.delivery.count.limit", DELIVERIES,
            "errors.deadletterqueue.topic.name", topic,
            "errors.deadletterqueue.copy.record.enable", Boolean.toString(copy));
        return settings.entrySet().stream()
            .map(s -> new AlterConfigOp(new ConfigEntry(s.getKey(), s.getValue()), AlterConfigOp.OpType.SET))
            .toList();
    }

    /** Until the process is ended. */
    static void consume(String brokers, String group) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", brokers,
            "group.id", group,
            "share.acknowledgement.mode", "explicit");
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("invoices"));
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    String value = record.value() == null ? "reject" : record.value();
                    consumer.acknowledge(record,
                        value.startsWith("reject") ? REJECT : value.startsWith("release") ? RELEASE : ACCEPT);
                }
                consumer.commitSync();
            }
        }
    }
}
