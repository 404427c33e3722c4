package decisions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/decisions"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// stream keeps what is published; take decides how long that takes and what is refused.
type stream struct {
	take func(context.Context) error

	mu       sync.Mutex
	messages []bus.Message
	ids      map[string]bool
}

func (s *stream) Publish(ctx context.Context, m bus.Message) (uint64, bool, error) {
	s.mu.Lock()
	if s.ids == nil {
		s.ids = make(map[string]bool)
	}
	duplicate := s.ids[m.ID]
	s.mu.Unlock()
	if s.take != nil {
		if err := s.take(ctx); err != nil {
			return 0, false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !duplicate {
		s.ids[m.ID] = true
		s.messages = append(s.messages, m)
	}
	return uint64(len(s.messages)), duplicate, nil
}

func (s *stream) records(t *testing.T) []*podplanev1.DecisionsRecord {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*podplanev1.DecisionsRecord
	for _, m := range s.messages {
		rec, err := decisions.Decode(m)
		if err != nil {
			t.Fatal(err)
		}
		if want := bus.DecisionsSubject("n1", rec.GetUid(), rec.GetNamespace(), rec.GetName()); m.Subject != want {
			t.Errorf("subject %s, want %s", m.Subject, want)
		}
		list = append(list, rec)
	}
	return list
}

func pod(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p." + uid, UID: types.UID(uid)}}
}

func start(s *stream, r prometheus.Registerer) (j *decisions.Journal, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	j = decisions.New(s, "n1", r, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = j.Run(ctx)
	}()
	return j, func() {
		cancel()
		<-done
	}
}

func decide(j *decisions.Journal, uid string, n int) {
	j.Decided(pod(uid), "", time.Now(), []plan.Decision{{Action: fmt.Sprint(n)}})
}

// actions are what the records of a pod say, in their order.
func actions(list []*podplanev1.DecisionsRecord, uid string) (all []string, messages int) {
	for _, r := range list {
		if r.GetUid() != uid {
			continue
		}
		messages++
		for _, d := range r.GetDecisions() {
			all = append(all, d.GetAction())
		}
	}
	return all, messages
}

func TestWhatIsDecidedMeanwhileGoesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{take: func(context.Context) error { time.Sleep(time.Second); return nil }}
		j, stop := start(s, nil)
		defer stop()
		decide(j, "a", 0)
		synctest.Wait()
		for n := 1; n <= 20; n++ {
			decide(j, "a", n)
		}
		decide(j, "b", 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		all, messages := actions(s.records(t), "a")
		if messages != 2 || len(all) != 21 {
			t.Errorf("%d messages with %v, want 21 decisions in 2", messages, all)
		}
		for i, a := range all {
			if a != fmt.Sprint(i) {
				t.Fatalf("out of order: %v", all)
			}
		}
		if _, messages := actions(s.records(t), "b"); messages != 1 {
			t.Errorf("%d messages of the other pod", messages)
		}
	})
}

// TestMessagesFitTheStream wants long decisions, however many at once, in messages that the bus takes, in their order.
func TestMessagesFitTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		j, stop := start(s, nil)
		defer stop()
		text := strings.Repeat("x", 4096)
		list := make([]plan.Decision, 100)
		for i := range list {
			list[i] = plan.Decision{Action: fmt.Sprint(i), Message: text, Because: plan.Because{Kind: plan.BecauseFailure, Message: text}}
		}
		j.Decided(pod("a"), "", time.Now(), list)
		synctest.Wait()
		all, _ := actions(s.records(t), "a")
		if len(all) != len(list) {
			t.Fatalf("%d decisions are stored, want %d", len(all), len(list))
		}
		for i, a := range all {
			if a != fmt.Sprint(i) {
				t.Fatalf("out of order: %v", all)
			}
		}
		for _, m := range s.messages {
			if len(m.Data) > int(bus.Decisions.MaxMessageBytes) {
				t.Errorf("a message of %d bytes, the stream takes %d", len(m.Data), bus.Decisions.MaxMessageBytes)
			}
		}
	})
}

func TestTheBusIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := true
		var mu sync.Mutex
		s := &stream{take: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return fault.New(fault.Unavailable, "away")
			}
			return nil
		}}
		r := prometheus.NewRegistry()
		j, stop := start(s, r)
		defer stop()
		for n := range decisions.MaxPending + 10 {
			decide(j, fmt.Sprintf("pod-%d", n%7), n)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		total := 0
		for _, rec := range s.records(t) {
			total += len(rec.GetDecisions())
		}
		if total != decisions.MaxPending {
			t.Errorf("%d decisions are stored, want %d", total, decisions.MaxPending)
		}
		wantCount(t, r, "podplane_syncd_decisions_dropped_total", 10)
		wantCount(t, r, "podplane_syncd_decisions_total", decisions.MaxPending)
	})
}

func wantCount(t *testing.T, r *prometheus.Registry, name string, want float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			if got := f.GetMetric()[0].GetCounter().GetValue(); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
			return
		}
	}
	t.Errorf("no metric %s", name)
}

func TestTheEndStoresWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{take: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
				return nil
			}
		}}
		j, stop := start(s, nil)
		decide(j, "a", 0)
		synctest.Wait() // it is under way
		decide(j, "a", 1)
		stop()
		if all, _ := actions(s.records(t), "a"); len(all) != 2 || all[0] != "0" || all[1] != "1" {
			t.Errorf("stored are %v", all)
		}
	})
}

func TestTheEndDoesNotWaitForTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewRegistry()
		s := &stream{take: func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fault.New(fault.Unavailable, "the bus is away")
		}}
		j, stop := start(s, r)
		decide(j, "a", 0)
		decide(j, "b", 0)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it ended after %s", took)
		}
		wantCount(t, r, "podplane_syncd_decisions_dropped_total", 2)
	})
}

func TestWhatCanNeverBeStoredIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := errors.Join(fault.New(fault.TooLarge, "too large"))
		calls := 0
		s := &stream{take: func(context.Context) error {
			if calls++; calls == 1 {
				return refuse
			}
			return nil
		}}
		r := prometheus.NewRegistry()
		j, stop := start(s, r)
		defer stop()
		decide(j, "a", 0)
		synctest.Wait()
		decide(j, "a", 1)
		synctest.Wait()
		if all, _ := actions(s.records(t), "a"); len(all) != 1 || all[0] != "1" {
			t.Errorf("stored are %v", all)
		}
		wantCount(t, r, "podplane_syncd_decisions_dropped_total", 1)
	})
}
