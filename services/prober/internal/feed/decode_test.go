package feed

import (
	"testing"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/manager"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

const podText = `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{
"initContainers":[{"name":"init","livenessProbe":{"tcpSocket":{"port":1}}},{"name":"side","restartPolicy":"Always","readinessProbe":{"tcpSocket":{"port":1}}}],
"containers":[{"name":"c","ports":[{"name":"web","containerPort":80}],
"startupProbe":{"exec":{"command":["x"]},"periodSeconds":1,"failureThreshold":30},
"livenessProbe":{"httpGet":{"port":"web"},"initialDelaySeconds":5,"periodSeconds":7,"successThreshold":1},
"readinessProbe":{"grpc":{"port":9,"service":"s"},"successThreshold":2}},{"name":"none"}]}}`

func TestDecodePod(t *testing.T) {
	t.Parallel()
	p, err := decodePod(&podplanev1.PodRecord{Uid: "u", Namespace: "ns", Name: "p", Pod: []byte(podText)})
	if err != nil {
		t.Fatal(err)
	}
	if p.UID != "u" || !p.Ending || len(p.Probes) != 4 {
		t.Fatalf("got %+v", p)
	}
	for i, want := range []struct {
		container, path string
		gated           bool
		params          verdict.Params
	}{
		{"side", "spec.initContainers{side}", false, verdict.Params{Kind: verdict.Readiness, FailureThreshold: 3}},
		{"c", "spec.containers{c}", true, verdict.Params{Kind: verdict.Startup, Period: time.Second, FailureThreshold: 30}},
		{"c", "spec.containers{c}", true, verdict.Params{Kind: verdict.Liveness, InitialDelay: 5 * time.Second, Period: 7 * time.Second, SuccessThreshold: 1, FailureThreshold: 3}},
		{"c", "spec.containers{c}", true, verdict.Params{Kind: verdict.Readiness, SuccessThreshold: 2, FailureThreshold: 3}},
	} {
		if got := p.Probes[i]; got.Container != want.container || got.FieldPath != want.path || got.Gated != want.gated || got.Params != want.params {
			t.Errorf("probe %d: got %+v", i, got)
		}
	}
	if h := p.Probes[2].Spec.HTTP; h == nil || h.Port != 80 {
		t.Errorf("got %+v", p.Probes[2].Spec)
	}
}

func TestDecodeStatus(t *testing.T) {
	t.Parallel()
	text := `{"phase":"Running","podIP":"10.0.0.7","initContainerStatuses":[{"name":"side","containerID":"containerd://s","state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}],
"containerStatuses":[{"name":"c","containerID":"containerd://abc","started":true,"state":{"running":{"startedAt":"2026-01-01T00:00:01Z"}}},
{"name":"dead","containerID":"plain","state":{"terminated":{"exitCode":1}}},{"name":"new","state":{"waiting":{}}}]}`
	s, err := decodeStatus(&podplanev1.StatusRecord{Status: []byte(text), Phase: podplanev1.WorkerPhase_WORKER_PHASE_SYNCING})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	for name, want := range map[string]manager.ContainerStatus{
		"side": {ID: "s", Running: true, StartedAt: at.Add(-time.Second)},
		"c":    {ID: "abc", Running: true, Started: true, StartedAt: at},
		"dead": {ID: "plain"},
		"new":  {},
	} {
		got := s.Containers[name]
		if !got.StartedAt.Equal(want.StartedAt) {
			t.Errorf("%s: started at %s", name, got.StartedAt)
		}
		got.StartedAt = want.StartedAt
		if got != want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if s.PodIP != "10.0.0.7" || s.Ending || s.Over {
		t.Errorf("got %+v", s)
	}
	for _, c := range []struct {
		record       *podplanev1.StatusRecord
		ending, over bool
	}{
		{&podplanev1.StatusRecord{Phase: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING}, true, false},
		{&podplanev1.StatusRecord{Phase: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED}, true, true},
		{&podplanev1.StatusRecord{Status: []byte(`{"phase":"Failed"}`)}, false, true},
		{&podplanev1.StatusRecord{}, false, false},
	} {
		if s, err := decodeStatus(c.record); err != nil || s.Ending != c.ending || s.Over != c.over {
			t.Errorf("%v: got %+v, %v", c.record, s, err)
		}
	}
}

// FuzzDecode feeds the decoders with anything: an error or a value, never a panic, and only probes that can be told.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(podText))
	f.Add([]byte(`{"containerStatuses":[{"name":"c","containerID":"a://b://c"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := decodePod(&podplanev1.PodRecord{Pod: data}); err == nil {
			for _, pr := range p.Probes {
				if s := pr.Spec; s.Err == nil && s.HTTP == nil && s.TCP == nil && s.GRPC == nil && len(s.Exec) == 0 || s.Timeout <= 0 {
					t.Errorf("probe without a handler or a bound: %+v", s)
				}
			}
		}
		if s, err := decodeStatus(&podplanev1.StatusRecord{Status: data}); err == nil && s.Containers == nil {
			t.Error("no containers")
		}
	})
}
