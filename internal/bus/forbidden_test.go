package bus_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// owners are the services that make and upgrade a stream, readers those that read or write it, from ARCHITECTURE.md and not from schema.go.
// "all" are the six services.
var streamRights = map[string]struct{ owners, readers string }{
	"KV_pods":       {"syncd", "syncd pleg prober volumed evictd cli"},
	"KV_objects":    {"syncd", "syncd volumed"},
	"KV_status":     {"syncd", "syncd pleg prober volumed evictd cli"},
	"KV_volumes":    {"volumed", "volumed syncd evictd cli"},
	"KV_probes":     {"prober", "prober syncd cli"},
	"KV_conditions": {"evictd pleg", "evictd pleg syncd prober volumed cli"},
	"KV_evictions":  {"evictd", "evictd syncd cli"},
	"KV_nodes":      {"syncd", "syncd cli"},
	"KV_services":   {"all", "all cli"},
	"KV_leases":     {"syncd pleg prober volumed evictd", "all cli"},
	"LIFECYCLE":     {"pleg", "all cli"},
	"EVENTS":        {"all", "all cli"},
	"DECISIONS":     {"syncd", "syncd cli"},
}

// management are the subjects of JetStream's API about one stream, $ being its name, and who may use them: owners, readers or nobody.
var management = map[string]string{
	"STREAM.CREATE.$": "owners", "STREAM.UPDATE.$": "owners",
	"STREAM.INFO.$": "readers", "STREAM.MSG.GET.$": "readers",
	"CONSUMER.CREATE.$.c": "readers", "CONSUMER.CREATE.$.c.filter": "readers", "CONSUMER.DELETE.$.c": "readers", "CONSUMER.MSG.NEXT.$.c": "readers",
	"STREAM.DELETE.$": "", "STREAM.PURGE.$": "", "STREAM.SNAPSHOT.$": "", "STREAM.RESTORE.$": "", "STREAM.MSG.DELETE.$": "",
	"STREAM.PEER.REMOVE.$": "", "STREAM.PEER.EVACUATE.$": "", "STREAM.CANCEL_MOVE.$": "", "STREAM.LEADER.STEPDOWN.$": "",
	"DIRECT.GET.$": "", "DIRECT.GET.$.x": "", "CONSUMER.CREATE.$": "", "CONSUMER.DURABLE.CREATE.$.c": "", "CONSUMER.NAMES.$": "", "CONSUMER.LIST.$": "",
	"CONSUMER.INFO.$.c": "", "CONSUMER.PAUSE.$.c": "", "CONSUMER.RESET.$.c": "", "CONSUMER.UNPIN.$.c": "", "CONSUMER.LEADER.STEPDOWN.$.c": "",
	"CONSUMER.PEER.REMOVE.$.c": "", "CONSUMER.PEER.EVACUATE.$.c": "",
}

// nobodys are subjects that no service may publish to.
var nobodys = []string{
	"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.mine", "$JS.API.STREAM.UPDATE.mine", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.META.RESCUE",
	"$JS.API.SERVER.REMOVE", "$JS.API.SERVER.EVACUATE", "$JS.API.ACCOUNT.PURGE.x", "$JS.API.ACCOUNT.STREAM.MOVE.x.y", "$JS.API", "$JS.ACK.KV_pods.c.1.1.1.1.1", "$JS.FC.x", "$JS.SNAPSHOT.ACK.x.y", "$JS.SNAPSHOT.RESTORE.x.y",
	"$JS.EVENT.ADVISORY.x", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "$SYS.ACCOUNT.x.y", "$KV.other.x", "$KV", "$O.bucket.C.x", "$MQTT.x", "$G", "elsewhere", "_INBOX.other.x", "_R_.x",
	"$FENCE.pods.syncd.n.0", "$FENCE.other.x", "pleg.v2." + here + ".u.x", "pleg.v1", "events.v1", "events.v2." + here + ".u.x",
}

func mayUse(list, service string) bool {
	names := strings.Fields(strings.ReplaceAll(list, "all", strings.Join(bus.AllServices(), " ")))
	return slices.Contains(names, service)
}

// TestForbiddenPublishes tries for every user every subject of the management of every stream, and those that are nobody's.
func TestForbiddenPublishes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	accounts := securedBus(t)
	for _, o := range bus.Ownerships(here) {
		name := o.Store
		if _, known := streamRights[name]; !known {
			name = "KV_" + name
		}
		if _, known := streamRights[name]; !known {
			t.Errorf("who may do what to %s is not in this test", o.Store)
		}
	}
	var wg sync.WaitGroup
	for _, a := range accounts {
		wg.Go(func() {
			allowed, refused := 0, 0
			try := func(subject string, may bool) {
				err := bus.Ask(ctx, a.c, subject)
				denied := fault.Is(err, fault.PermissionDenied)
				if denied == may {
					t.Errorf("%s publishes to %s: %v, want allowed %v", a.service, subject, err, may)
				}
				if denied {
					refused++
				} else {
					allowed++
				}
			}
			for _, stream := range slices.Sorted(maps.Keys(streamRights)) {
				rights := streamRights[stream]
				for _, form := range slices.Sorted(maps.Keys(management)) {
					list := map[string]string{"owners": rights.owners, "readers": rights.readers}[management[form]]
					try("$JS.API."+strings.ReplaceAll(form, "$", stream), mayUse(list, a.service))
				}
			}
			for _, subject := range nobodys {
				try(subject, false)
			}
			for _, other := range accounts {
				if other.service != a.service {
					try("_INBOX."+other.service+".x", false)
				}
			}
			t.Logf("%-8s %d allowed, %d refused", a.service, allowed, refused)
		})
	}
	wg.Wait()
}

// TestForbiddenSubscriptions has every user listen to what is not his: he hears nothing of it.
func TestForbiddenSubscriptions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	accounts := securedBus(t)
	syncd := accounts[bus.ServiceSyncd]
	pods, err := bus.Open(ctx, syncd.c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	key := bus.PodKey(here, "uid")
	for _, a := range accounts {
		for _, subject := range []string{">", "*.>", "$KV.>", "$KV.pods.>", "$KV.pods." + bus.Token(here) + ".*", "$JS.>", "$JS.API.>", "$JS.EVENT.>", "$SYS.>", "_INBOX.>", "_INBOX.other.>", "pleg.v1.>", "events.v1.>", "$FENCE.>"} {
			heard, err := bus.Overhears(ctx, a.c, subject, func() error {
				_, err := pods.Put(ctx, key, bus.Pods.New())
				return err
			})
			if err != nil {
				t.Fatalf("%s on %s: %v", a.service, subject, err)
			}
			if heard {
				t.Errorf("%s hears %s", a.service, subject)
			}
		}
	}
}
