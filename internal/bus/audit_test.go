package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestAudit hears a record, its removal and a message, and learns nothing of what is only asked.
func TestAudit(t *testing.T) {
	b := bustest.New(t)
	syncd, pleg := b.Connect(bus.ServiceSyncd, "n"), b.Connect(bus.ServicePleg, "n")
	heard, listening, ended := make(chan bus.Publication, 10), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	auditor := b.Connect("audit", "n")
	go func() {
		ended <- bus.Audit(ctx, auditor, bus.AuditHandler{
			Listening: func() { close(listening) }, Published: func(p bus.Publication) { heard <- p },
		})
	}()
	<-listening
	pods, err := bus.Open(ctx, syncd, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	key := bus.PodKey("n", "uid")
	if _, err := pods.Put(ctx, key, &podplanev1.PodRecord{Uid: "uid"}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(ctx, key); err != nil {
		t.Fatal(err)
	}
	journal, err := bus.OpenStream(ctx, pleg, bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	subject := bus.LifecycleSubject("n", "uid", "ContainerDied")
	if _, _, err := journal.Publish(ctx, bus.Message{Subject: subject, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bus.Publication{
		{Store: bus.BucketPods, Subject: "$KV.pods.n.uid", Service: bus.ServiceSyncd, Instance: "test"},
		{Store: bus.BucketPods, Subject: "$KV.pods.n.uid", Service: bus.ServiceSyncd, Instance: "test"},
		{Store: bus.StreamLifecycle, Subject: subject, Service: bus.ServicePleg, Instance: "test"},
	} {
		got := <-heard
		got.Data = nil
		if got.Store != want.Store || got.Subject != want.Subject || got.Service != want.Service || got.Instance != want.Instance {
			t.Errorf("publication %d is %+v, want %+v", i, got, want)
		}
	}
	before, err := journal.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if may, err := bus.MayPublish(ctx, pleg, subject); err != nil || !may {
		t.Errorf("a server without permissions lets publish: %v, %v", may, err)
	}
	if after, err := journal.Info(ctx); err != nil || after.LastSequence != before.LastSequence {
		t.Errorf("asking stored something: %+v, %v", after, err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestOwnerships has one writer for each record, but for registrations and Events, where each service writes its own.
func TestOwnerships(t *testing.T) {
	for _, o := range bus.Ownerships("a.example") {
		subjects := map[string]string{}
		for service, list := range o.Writers {
			for _, subject := range list {
				if other, taken := subjects[subject]; taken && o.Store != bus.StreamEvents {
					t.Errorf("%s: %s and %s publish to %s", o.Store, other, service, subject)
				}
				subjects[subject] = service
			}
		}
		if len(subjects) == 0 {
			t.Errorf("nobody publishes to %s", o.Store)
		}
	}
}
