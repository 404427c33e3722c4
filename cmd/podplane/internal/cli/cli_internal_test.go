package cli

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func TestSplitReadsEveryDocument(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
		err      string
	}{
		{"one", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", []string{"Pod/a"}, ""},
		{"json", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}`, []string{"Secret/s"}, ""},
		{"several, with empty ones", "---\n# nothing\n---\nkind: Pod\nmetadata: {name: a}\n---\nkind: ConfigMap\nmetadata: {name: b}\n", []string{"Pod/a", "ConfigMap/b"}, ""},
		{"no kind", "metadata: {name: a}\n", nil, "kind: required"},
		{"no yaml", "a: [\n", nil, "document 1"},
		{"nothing", "", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			docs, err := split("f.yaml", []byte(tc.in))
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			var got []string
			for _, d := range docs {
				got = append(got, d.object.Kind+"/"+d.object.Name)
			}
			if strings.Join(got, " ") != strings.Join(tc.want, " ") {
				t.Errorf("documents %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPodStatusSaysWhatMattersMost(t *testing.T) {
	waiting := func(reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	ended := func(reason string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}}
	}
	for _, tc := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"running", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, "Running"},
		{"back-off", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{waiting("CrashLoopBackOff")}}}, "CrashLoopBackOff"},
		{"going", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, "Terminating"},
		{"second init", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{ended("Completed", 0), waiting("PodInitializing")}}}, "Init:1/0"},
		{"failed init", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{ended("Error", 1)}}}, "Init:Error"},
		{"evicted", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}}, "Evicted"},
		{"done", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("Completed", 0)}}}, "Completed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := podStatus(&tc.pod); got != tc.want {
				t.Errorf("podStatus = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPrintObjects(t *testing.T) {
	r, err := rest.ResourceByName("po")
	if err != nil {
		t.Fatal(err)
	}
	pod := `{"metadata":{"name":"web","namespace":"default"},"spec":{"containers":[{}]},"status":{"phase":"Pending"}}`
	for output, want := range map[string]string{
		"":     "default     web    0/1     Pending   0          <unknown>   <none>",
		"name": "pod/web",
		"yaml": "phase: Pending",
		"json": `"phase": "Pending"`,
	} {
		var b strings.Builder
		if err := printObjects(&b, r, []byte(pod), output, true); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("-o %q: %v\n%s\nlacks %q", output, err, b.String(), want)
		}
	}
	if err := printObjects(&strings.Builder{}, r, []byte(pod), "xml", true); err == nil {
		t.Error("-o xml is no error")
	}
	var b strings.Builder
	if err := printObjects(&b, r, []byte(`{"items":[]}`), "", false); err != nil || b.String() != "no pods\n" {
		t.Errorf("empty list: %q, %v", b.String(), err)
	}
}

func TestRowsOfEveryKind(t *testing.T) {
	for _, name := range []string{"pods", "configmaps", "secrets", "events", "nodes"} {
		r, err := rest.ResourceByName(name)
		if err != nil {
			t.Fatal(err)
		}
		row, err := rowOf(r, json.RawMessage(`{}`), false, time.Now())
		if err != nil || len(row) != len(headers[r.Kind]) {
			t.Errorf("%s: row %q, %v; want %d cells", name, row, err, len(headers[r.Kind]))
		}
	}
}

func TestWatchInEachForm(t *testing.T) {
	const stream = `{"type":"ADDED","object":{"kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"},"data":{"k":"v"}}}
{"type":"DELETED","object":{"kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}}
`
	r, err := rest.ResourceByName("configmaps")
	if err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string][]string{
		"":     {"CHANGE NAMESPACE NAME DATA AGE", "ADDED ns a 1 <unknown>", "DELETED ns a 0 <unknown>"},
		"name": {"configmap/a", "configmap/a"},
		"json": {`{"type":"ADDED","object":{"kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"},"data":{"k":"v"}}}`, `{"type":"DELETED","object":{"kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}}`},
		"yaml": {"---", "data:", "k: v", "kind: ConfigMap", "metadata:", "name: a", "namespace: ns", "---", "kind: ConfigMap", "metadata:", "name: a", "namespace: ns"},
	} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetContext(t.Context())
		if err := printWatch(cmd, r, io.NopCloser(strings.NewReader(stream)), output); err != nil {
			t.Errorf("%q: %v", output, err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q prints\n%q, want\n%q", output, got, want)
		}
	}
	if err := printWatch(&cobra.Command{}, r, io.NopCloser(strings.NewReader(stream)), "wide,"); err == nil {
		t.Error("an unknown form is taken")
	}
}
