package api_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/api"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

type source struct{}

func (source) Orders() []*podplanev1.EvictionRecord {
	return []*podplanev1.EvictionRecord{{Uid: "1", Namespace: "a", Name: "x"}, {Uid: "2", Namespace: "b", Name: "x"}, {Uid: "3", Namespace: "b", Name: "y"}}
}

func (source) Conditions() ([]*podplanev1.ConditionRecord, []*podplanev1.Signal) {
	return []*podplanev1.ConditionRecord{{Type: policy.MemoryPressure}}, []*podplanev1.Signal{{Name: "memory.available"}}
}

func (source) Rank(_ context.Context, s policy.Signal) ([]policy.Ranked, error) {
	return policy.Rank(s, []policy.Pod{{UID: "static", Static: true}, {UID: "a", Memory: 5, MemoryRequest: 1, Measured: true}}, true), errors.New("incomplete")
}

// others are the orders on the bus, this node's and another's.
func others(_ context.Context, node string) ([]*podplanev1.EvictionRecord, error) {
	all := []*podplanev1.EvictionRecord{{Uid: "1", Namespace: "a", Name: "x", Node: "n"}, {Uid: "9", Namespace: "b", Name: "z", Node: "m"}}
	return slices.DeleteFunc(all, func(o *podplanev1.EvictionRecord) bool { return node != "" && o.GetNode() != node }), nil
}

func server(conditions func(context.Context, string) ([]*podplanev1.ConditionRecord, error)) *api.Evictions {
	return api.NewEvictions("n", source{}, api.Stored{Conditions: conditions, Orders: others}, slog.New(slog.DiscardHandler))
}

func TestListEvictions(t *testing.T) {
	e := server(nil)
	for _, test := range []struct {
		req  *podplanev1.ListEvictionsRequest
		want int
	}{
		{&podplanev1.ListEvictionsRequest{}, 4},
		{&podplanev1.ListEvictionsRequest{Node: "n"}, 3},
		{&podplanev1.ListEvictionsRequest{Node: "m"}, 1},
		{&podplanev1.ListEvictionsRequest{Node: "m", Namespace: "a"}, 0},
		{&podplanev1.ListEvictionsRequest{Namespace: "b"}, 3},
		{&podplanev1.ListEvictionsRequest{Namespace: "b", Name: "x"}, 1},
		{&podplanev1.ListEvictionsRequest{Uid: "3"}, 1},
		{&podplanev1.ListEvictionsRequest{Uid: "4"}, 0},
	} {
		out, err := e.ListEvictions(t.Context(), test.req)
		if err != nil || len(out.GetEvictions()) != test.want {
			t.Errorf("%v: %v, %v", test.req, out, err)
		}
	}
}

func TestListConditions(t *testing.T) {
	all := []*podplanev1.ConditionRecord{{Type: "RuntimeReady"}, {Type: policy.MemoryPressure}}
	e := server(func(context.Context, string) ([]*podplanev1.ConditionRecord, error) { return all, nil })
	out, err := e.ListConditions(t.Context(), &podplanev1.ListConditionsRequest{})
	if err != nil || len(out.GetConditions()) != 2 || len(out.GetSignals()) != 1 {
		t.Errorf("%v, %v", out, err)
	}
	out, err = e.ListConditions(t.Context(), &podplanev1.ListConditionsRequest{Node: "other"})
	if err != nil || len(out.GetConditions()) != 2 || len(out.GetSignals()) != 0 {
		t.Errorf("of another node: %v, %v", out, err)
	}
	away := fault.New(fault.Unavailable, "away")
	e = server(func(context.Context, string) ([]*podplanev1.ConditionRecord, error) { return nil, away })
	out, err = e.ListConditions(t.Context(), &podplanev1.ListConditionsRequest{Node: "n"})
	if err != nil || len(out.GetConditions()) != 1 {
		t.Errorf("without the bus: %v, %v", out, err)
	}
	if _, err = e.ListConditions(t.Context(), &podplanev1.ListConditionsRequest{Node: "other"}); !errors.Is(err, away) {
		t.Errorf("of another node without the bus: %v", err)
	}
}

func TestRankPods(t *testing.T) {
	e := server(nil)
	out, err := e.RankPods(t.Context(), &podplanev1.RankPodsRequest{})
	if err != nil || len(out.GetPods()) != 2 {
		t.Fatalf("%v, %v", out, err)
	}
	if p := out.GetPods()[0]; p.GetUid() != "a" || p.GetUsage() != 5 || p.GetRequest() != 1 || p.GetCritical() || p.GetReason() == "" {
		t.Errorf("first: %v", p)
	}
	if p := out.GetPods()[1]; !p.GetCritical() {
		t.Errorf("second: %v", p)
	}
	if _, err := e.RankPods(t.Context(), &podplanev1.RankPodsRequest{Node: "m"}); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("another node's pods: %v", err)
	}
	if _, err := e.RankPods(t.Context(), &podplanev1.RankPodsRequest{Signal: "cpu"}); !fault.Is(err, fault.BadRequest) {
		t.Errorf("an unknown signal: %v", err)
	}
}
