// A Watermill router whose handler fails: after two retries the poison queue gets the message.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

func main() {
	brokers, logger := []string{os.Args[1]}, watermill.NewStdLogger(false, false)
	settings := kafka.DefaultSaramaSubscriberConfig()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               brokers,
		ConsumerGroup:         "welcomer",
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: settings,
	}, logger)
	check(err)
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, logger)
	check(err)
	poison, err := middleware.PoisonQueue(publisher, "signups-poison")
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	router.AddMiddleware(poison, middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware)
	router.AddConsumerHandler("welcome", "signups", subscriber, func(m *message.Message) error {
		if len(m.Payload) == 0 {
			return errors.New("")
		}
		return errors.New("no such user: " + string(m.Payload))
	})
	end, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	check(router.Run(end))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
