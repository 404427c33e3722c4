package rest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// Service is a replica of one of Podplane's services, as /podplane/v1/services
// answers it.
type Service struct {
	Service     string `json:"service"`
	Node        string `json:"node"`
	Instance    string `json:"instance"`
	Version     string `json:"version"`
	GRPCAddress string `json:"grpcAddress"`
	HTTPAddress string `json:"httpAddress"`
	StartedAt   string `json:"startedAt"`
	LastSeen    string `json:"lastSeen"`
	Ready       bool   `json:"ready"`
	Message     string `json:"message"`
	PID         string `json:"pid"`
	// Shards are those that it works on; of a service with one only, its holder leads.
	Shards []int `json:"shards"`
}

// Services asks for every replica that is registered on the bus.
func Services(ctx context.Context, c *Client) ([]Service, error) {
	var out struct {
		Services []Service `json:"services"`
	}
	err := c.Into(ctx, Request{Method: http.MethodGet, Path: "/podplane/v1/services"}, &out)
	return out.Services, err
}

// Lifecycle is an event of the journal, as /podplane/v1/lifecycle answers it.
type Lifecycle struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	Container  string `json:"container"`
	ExitCode   *int32 `json:"exitCode"`
	Reason     string `json:"reason"`
	OccurredAt string `json:"occurredAt"`
	Via        string `json:"via"`
	Attempt    uint32 `json:"attempt"`
}

// String is the event as one line for people.
func (l Lifecycle) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s", l.OccurredAt, l.Namespace, l.Name)
	if l.Container != "" {
		fmt.Fprintf(&b, " %s (attempt %d)", l.Container, l.Attempt)
	}
	fmt.Fprintf(&b, " %s", strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(l.Type, "LIFECYCLE_TYPE_"), "_", " ")))
	if l.ExitCode != nil {
		fmt.Fprintf(&b, " with exit code %d", *l.ExitCode)
	}
	if l.Reason != "" {
		fmt.Fprintf(&b, " (%s)", l.Reason)
	}
	fmt.Fprintf(&b, " seen by %s", l.Via)
	return b.String()
}
