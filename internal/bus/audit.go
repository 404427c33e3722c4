package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/podplane/podplane/internal/fault"
)

// Ownership says who may publish to a bucket or stream on one node.
type Ownership struct {
	// Store is the bucket's or stream's name.
	Store string
	// Writers gives for each service the subjects that it publishes to; they may end in a wildcard.
	Writers map[string][]string
}

// Ownerships lists what the declarations of buckets and streams say about a node.
func Ownerships(node string) []Ownership {
	var list []Ownership
	for _, d := range declared() {
		o := Ownership{Store: d.name, Writers: map[string][]string{}}
		for service, subjects := range d.writers {
			for _, subject := range subjects {
				o.Writers[service] = append(o.Writers[service], strings.NewReplacer("{service}", Token(service), "{node}", Token(node)).Replace(subject))
			}
		}
		list = append(list, o)
	}
	return list
}

// Publication is something that somebody published to a bucket or stream.
type Publication struct {
	// Store is the bucket's or stream's name, Subject where it was published.
	Store, Subject string
	// Service and Instance are those that the message names as its writer; empty where it names none.
	Service, Instance string
	// Data is the message's payload.
	Data []byte
}

// AuditHandler gets what an audit hears. Both are called from the goroutine that called Audit.
type AuditHandler struct {
	// Listening is called once, when everything that is published from now on will be heard.
	Listening func()
	// Published is called for each message, in the order of each publisher.
	Published func(Publication)
}

// auditBuffer is how many messages an audit may lag behind.
const auditBuffer = 1 << 14

// Audit hears every message that is published to a declared bucket or stream, before the bus stores it, until ctx ends. It needs a
// connection that may subscribe to all of them. A message that it misses is an error: it lags too far behind, or the connection is lost.
func Audit(ctx context.Context, c *Conn, h AuditHandler) (err error) {
	lost, heard := c.lost(), make(chan *nats.Msg, auditBuffer)
	stores := map[*nats.Subscription]string{}
	defer func() {
		for sub := range stores {
			if n, dropErr := sub.Dropped(); dropErr == nil && n > 0 {
				err = errors.Join(err, fault.New(fault.ResourceExhausted, "audit the bus: %d messages missed", n))
			}
			_ = sub.Unsubscribe() // the connection is lost then, which the error says
		}
	}()
	for _, d := range declared() {
		for _, subject := range d.config.Subjects {
			sub, err := c.nc.ChanSubscribe(subject, heard)
			if err != nil {
				return unavailable(fmt.Errorf("audit the bus: subscribe to %s: %w", subject, err))
			}
			stores[sub] = d.name
		}
	}
	flushing, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	if err := c.nc.FlushWithContext(flushing); err != nil {
		return unavailable(fmt.Errorf("audit the bus: %w", err))
	}
	if h.Listening != nil {
		h.Listening()
	}
	for {
		select {
		case m := <-heard:
			p := Publication{Store: stores[m.Sub], Subject: m.Subject, Data: m.Data}
			p.Service, p.Instance, _ = strings.Cut(m.Header.Get(HeaderWriter), "/")
			h.Published(p)
		case <-lost:
			return fmt.Errorf("audit the bus: %w", c.whyLost(errCursorLost))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// headerExpectedStream makes JetStream refuse a message unless it is for the stream of that name.
const (
	headerExpectedStream = "Nats-Expected-Stream"
	codeOtherStream      = 10060
)

// MayPublish asks the server whether the connection may publish to a subject of a bucket or stream. Nothing is stored: the message that
// asks is one that JetStream refuses, if it gets that far.
func MayPublish(ctx context.Context, c *Conn, subject string) (bool, error) {
	m := c.newMessage(ctx, subject, nil)
	m.Header[headerExpectedStream] = []string{"none"}
	switch _, err := c.publish(ctx, m); {
	case fault.Is(err, fault.PermissionDenied):
		return false, nil
	case isCode(err, codeOtherStream):
		return true, nil
	case err == nil:
		return true, fault.New(fault.Internal, "publish to %s: stored where it was to be refused", subject)
	default:
		return false, fmt.Errorf("publish to %s: %w", subject, err)
	}
}
