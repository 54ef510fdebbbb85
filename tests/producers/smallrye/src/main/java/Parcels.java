import io.smallrye.config.SmallRyeConfigBuilder;
import io.smallrye.mutiny.Uni;
import jakarta.enterprise.context.ApplicationScoped;
import org.eclipse.microprofile.config.spi.ConfigProviderResolver;
import org.eclipse.microprofile.reactive.messaging.Incoming;
import org.jboss.weld.environment.se.Weld;

/** Ships parcels, and fails on each: with a cause, or with an exception that has neither text nor cause. Weighs in vain, too. */
@ApplicationScoped
public class Parcels {
    public static void main(String[] args) throws InterruptedException {
        var config = new SmallRyeConfigBuilder().addDefaultSources().addDefaultInterceptors().addDiscoveredConverters().build();
        ConfigProviderResolver.instance().registerConfig(config, Thread.currentThread().getContextClassLoader());
        new Weld().initialize();
        Thread.currentThread().join();
    }

    @Incoming("parcels")
    Uni<Void> ship(String parcel) {
        return Uni.createFrom().failure(parcel.startsWith("lost")
            ? new IllegalStateException("cannot ship " + parcel, new UnsupportedOperationException("no carrier"))
            : new IllegalArgumentException());
    }

    /** What is thrown comes wrapped: outside of Quarkus, methods are called by reflection. */
    @Incoming("weights")
    void weigh(Long weight) {
        throw new IllegalStateException("weighs " + weight);
    }
}
