import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/**
 * A sink that writes nowhere. It refuses records through Connect's reporter of errant records: orders that are marked so, those
 * without a body, or, where {@code refuse.keys} is set, those with such a key. What converters and transformations fail on never
 * gets here.
 */
public class OrdersSink extends SinkConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> props) {
        settings = props;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return OrdersTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        return Collections.nCopies(1, settings);
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef().define("refuse.keys", ConfigDef.Type.LIST, List.of(), ConfigDef.Importance.LOW, "Orders to refuse.");
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
        return "1";
    }

    public static class OrdersTask extends SinkTask {
        private List<String> refused = List.of();

        @Override
        public void start(Map<String, String> props) {
            if (props.containsKey("refuse.keys")) {
                refused = List.of(props.get("refuse.keys").split(","));
            }
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            for (SinkRecord record : records) {
                Throwable error = refusal(record);
                if (error != null) {
                    context.errantRecordReporter().report(record, error);
                }
            }
        }

        private Throwable refusal(SinkRecord record) {
            if (!refused.isEmpty()) {
                boolean refuse = record.key() != null && refused.contains(new String((byte[]) record.key(), StandardCharsets.UTF_8));
                return refuse ? new UnsupportedOperationException("the warehouse is closed") : null;
            }
            if (record.value() == null) {
                return new IllegalArgumentException("an order without a body");
            }
            // An exception without a message is what a careless sink reports.
            return ((Map<?, ?>) record.value()).containsKey("refuse") ? new IllegalStateException() : null;
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
