package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// declaration is what permissions and provisioning need to know of a spec.
type declaration struct {
	specInfo
	writers map[string][]string // subjects by service, with {service} and {node}
	readers []string
}

// declared lists all buckets and streams.
func declared() []declaration {
	return []declaration{
		declare(Pods), declare(Objects), declare(Status), declare(Volumes), declare(Probes),
		declare(Conditions), declare(Evictions), declare(Nodes), declare(Services), declare(Leases),
		declareStream(Lifecycle), declareStream(Events), declareStream(Decisions),
	}
}

func declare[T proto.Message](s BucketSpec[T]) declaration {
	d := declaration{specInfo: s.info(), writers: map[string][]string{}, readers: s.Readers}
	for w, patterns := range s.Writers {
		for _, p := range patterns {
			d.writers[w] = append(d.writers[w], bucketPrefix+s.Name+"."+p)
		}
		if s.Fenced {
			d.writers[w] = append(d.writers[w], fencePrefix+s.Name+".{service}.{node}.*")
		}
	}
	return d
}

func declareStream(s StreamSpec) declaration {
	d := declaration{specInfo: s.info(), writers: map[string][]string{}, readers: s.Readers}
	for _, o := range s.Owners {
		for _, subject := range s.Subjects {
			d.writers[o] = append(d.writers[o], strings.TrimSuffix(subject, ">")+"{node}.>")
		}
	}
	return d
}

// Permissions gives the subjects that the account of a service may publish and
// subscribe to, for any node: exactly what it needs to write its own records,
// to create what it owns, to read what it declares, and nothing else.
func Permissions(service string) (publish, subscribe []string) {
	return permissions(service, "*")
}

// PermissionsOn is Permissions for the records of one node only, for a server
// that many nodes share.
func PermissionsOn(service, node string) (publish, subscribe []string) {
	return permissions(service, Token(node))
}

func permissions(service, node string) (publish, subscribe []string) {
	fill := strings.NewReplacer("{service}", Token(service), "{node}", node)
	for _, d := range declared() {
		writes := d.writers[service]
		for _, subject := range writes {
			publish = append(publish, fill.Replace(subject))
		}
		if slices.Contains(d.owners, service) {
			publish = append(publish, apiStreamCreate+d.stream, apiStreamUpdate+d.stream)
		}
		if len(writes) > 0 || slices.Contains(d.readers, service) {
			publish = append(publish, apiStreamInfo+d.stream, apiMessageGet+d.stream,
				apiConsumerCreate+d.stream+".>", apiConsumerDelete+d.stream+".*", apiConsumerNext+d.stream+".*")
		}
	}
	subscribe = []string{inboxPrefix(service) + ".>"}
	if slices.Contains(AllServices(), service) {
		publish = append(publish, fill.Replace(failedTracesPrefix+"{node}.{service}"))
		subscribe = append(subscribe, failedTraces(service, node)...)
	}
	slices.Sort(publish)
	return slices.Compact(publish), subscribe
}

// Provision creates or upgrades every bucket and stream, whoever owns them: for
// an installation that prepares a server before the services start, and for tests.
// The connection needs the permissions for it.
func Provision(ctx context.Context, c *Conn) error {
	for _, d := range declared() {
		s := c.adjust(d.specInfo)
		if err := c.ensureOnce(ctx, s, true); err != nil {
			return fmt.Errorf("provision %s %s: %w", s.kind, s.name, err)
		}
	}
	return nil
}
