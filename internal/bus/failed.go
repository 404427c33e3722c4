package bus

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// failedTracesPrefix begins the subjects <prefix><node>.<service>, on which the services of a node tell each other the ids of traces that were
// not sampled and turned out to have an error. They are hints: nothing stores them, one that is lost costs a part of a trace.
const failedTracesPrefix = "traces.v1.failed."

// failedTraces are the subjects that a service listens to: those of its node, and of the gateways through which requests for the node come. A
// gateway listens to every node that it may speak for.
func failedTraces(service, node string) []string {
	if service == ServiceGateway {
		return []string{failedTracesPrefix + ">"}
	}
	own := failedTracesPrefix + node + ".*"
	if node == "*" {
		return []string{own}
	}
	return []string{own, failedTracesPrefix + "*." + ServiceGateway}
}

// TellFailedTrace tells the other services of a trace with an error. It never waits; while the bus is away it is an error.
func (c *Conn) TellFailedTrace(id string) error {
	if err := c.nc.Publish(failedTracesPrefix+Key(c.cfg.Node, c.cfg.Service), []byte(id)); err != nil {
		return fmt.Errorf("tell of a trace with an error: %w", err)
	}
	return nil
}

// maxTraceID bounds what is taken for a trace id.
const maxTraceID = 64

// HearFailedTraces calls f with the ids of traces in which other services met an error, until the connection closes. f must not block. What
// arrives is a stranger's to write: f checks it.
func (c *Conn) HearFailedTraces(f func(id string)) error {
	for _, subject := range failedTraces(c.cfg.Service, Token(c.cfg.Node)) {
		if _, err := c.nc.Subscribe(subject, func(m *nats.Msg) {
			if len(m.Data) <= maxTraceID {
				f(string(m.Data))
			}
		}); err != nil {
			return fmt.Errorf("listen for traces with errors: %w", err)
		}
	}
	return nil
}
