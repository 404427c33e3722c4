package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/testkit"
)

// TestManyNodes goes through a fleet's life: pods on each node through one gateway, a server of the bus killed, the bus without a majority,
// and a node cut off and healed.
func TestManyNodes(t *testing.T) {
	ctx := testContextOf(t, fleetTimeout)
	f := newFleet(t, ctx)
	t.Run("one gateway for all nodes", func(t *testing.T) { f.testGateway(t, ctx) })
	t.Run("names and versions", func(t *testing.T) { f.testNames(t, ctx) })
	t.Run("a server of the bus is killed", func(t *testing.T) { f.testServerKilled(t, ctx) })
	t.Run("no majority of the bus", func(t *testing.T) { f.testNoMajority(t, ctx) })
	t.Run("a node is cut off", func(t *testing.T) { f.testCut(t, ctx) })
	t.Run("all pods are deleted", func(t *testing.T) { f.testDeleteAll(t, ctx) })
}

func (f *fleet) testGateway(t *testing.T, ctx context.Context) {
	for _, h := range f.hosts {
		f.waitNode(t, ctx, "a", h, corev1.ConditionTrue)
	}
	for what, c := range map[string]struct{ query, node, want string }{
		"no node":         {"", "", "there are several nodes and no scheduler: name one here or as ?node= of the request, of a, b, c"},
		"an unknown node": {"", "d", "there is no such node; there are a, b, c"},
		"two nodes":       {"?node=a", "b", `must be the node of the request, \"a\", or empty`},
	} {
		a := f.post(t, ctx, "a", c.query, f.pod("refused", c.node))
		if a.Code != http.StatusUnprocessableEntity || !strings.Contains(string(a.Body), c.want) || !strings.Contains(string(a.Body), `"field": "spec.nodeName"`) && !strings.Contains(string(a.Body), `"field":"spec.nodeName"`) {
			t.Errorf("%s: %d %s", what, a.Code, a.Body)
		}
	}
	if _, err := f.on["b"].Want(ctx, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/configmaps", "application/yaml",
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {greeting: hello from every node}\n")); err != nil {
		t.Fatal(err)
	}
	for _, h := range f.hosts {
		f.create(t, ctx, "a", "web-"+h, h)
	}
	if a := f.post(t, ctx, "a", "?node=c", f.pod("asked", "")); a.Code != http.StatusCreated {
		t.Fatalf("with ?node=c: %d %s", a.Code, a.Body)
	}
	if a := f.post(t, ctx, "a", "", manifest("reader", `
  nodeName: c
  restartPolicy: Never
  volumes: [{name: cm, configMap: {name: cm}}]
  containers:
  - {name: app, image: $IMAGE, args: [cat, /cm/greeting], volumeMounts: [{name: cm, mountPath: /cm}]}
`)); a.Code != http.StatusCreated {
		t.Fatalf("a pod with a ConfigMap: %d %s", a.Code, a.Body)
	}
	for _, name := range []string{"web-a", "web-b", "web-c", "asked"} {
		p, err := f.on["a"].WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if want := f.Address(p.Spec.NodeName); p.Status.HostIP != want {
			t.Errorf("pod %s on node %s has the host address %s, want %s", name, p.Spec.NodeName, p.Status.HostIP, want)
		}
		if log, err := f.on["a"].Log(ctx, ns(t), name, ""); err != nil || log != "hello from "+name+"\n" {
			t.Errorf("log of %s: %q, %v", name, log, err)
		}
	}
	if _, err := f.on["b"].WaitPod(ctx, ns(t), "reader", "has succeeded", phaseIs(corev1.PodSucceeded)); err != nil {
		t.Fatal(err)
	}
	if log, err := f.on["a"].Log(ctx, ns(t), "reader", ""); err != nil || log != "hello from every node" {
		t.Errorf("log of reader: %q, %v", log, err)
	}
	all := []string{"asked", "reader", "web-a", "web-b", "web-c"}
	for _, h := range f.hosts {
		if got := f.names(t, ctx, h, ""); !slices.Equal(got, all) {
			t.Errorf("pods via %s: %v", h, got)
		}
		if got := f.names(t, ctx, h, "?node=c"); !slices.Equal(got, []string{"asked", "reader", "web-c"}) {
			t.Errorf("pods of c via %s: %v", h, got)
		}
	}
	f.testOthers(t, ctx)
}

// testOthers asks one gateway for what the other services of all nodes know.
func (f *fleet) testOthers(t *testing.T, ctx context.Context) {
	for path, want := range map[string]map[string]bool{
		"/podplane/v1/services":                          {"a": true, "b": true, "c": true},
		"/podplane/v1/services?node=b":                   {"b": true},
		"/podplane/v1/conditions":                        {"a": true, "b": true, "c": true},
		"/podplane/v1/conditions?node=c":                 {"c": true},
		"/podplane/v1/probes":                            {"a": true, "b": true, "c": true},
		"/podplane/v1/probes?node=b":                     {"b": true},
		"/podplane/v1/volumes?node=c":                    {"c": true},
		"/podplane/v1/volumes?node=b":                    {},
		"/podplane/v1/lifecycle":                         {"a": true, "b": true, "c": true},
		"/podplane/v1/lifecycle?node=b":                  {"b": true},
		"/api/v1/namespaces/" + ns(t) + "/events":        {"a": true, "b": true, "c": true},
		"/api/v1/namespaces/" + ns(t) + "/events?node=c": {"c": true},
	} {
		testkit.Eventually(ctx, t, "what "+path+" answers", func(ctx context.Context) error {
			a, err := f.on["a"].Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
			if err != nil {
				return err
			}
			got := map[string]bool{}
			for _, h := range f.hosts {
				for _, key := range []string{"node", "host"} {
					if bytes.Contains(a.Body, []byte(`"`+key+`": "`+h+`"`)) || bytes.Contains(a.Body, []byte(`"`+key+`":"`+h+`"`)) {
						got[h] = true
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("got of %v, want of %v: %s", got, want, a.Body)
			}
			return nil
		})
	}
	for _, h := range f.hosts {
		a, err := f.on["a"].Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/why?namespace="+ns(t)+"&pod=web-"+h, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(a.Body, []byte(`"chains": [
    {`)) {
			t.Errorf("why web-%s: %s", h, a.Body)
		}
	}
	for _, node := range []string{"a", "b"} {
		a, err := f.on["a"].Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/evictions/rank?node="+node, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(a.Body, []byte("web-"+node)) {
			t.Errorf("rank on %s: %s", node, a.Body)
		}
	}
}

func (f *fleet) testNames(t *testing.T, ctx context.Context) {
	if a := f.post(t, ctx, "b", "", f.pod("web-a", "b")); a.Code != http.StatusConflict || !bytes.Contains(a.Body, []byte("on node \\\"a\\\"")) {
		t.Errorf("a name that is taken on another node: %d %s", a.Code, a.Body)
	}
	// One gateway's versions hold for pods of every node.
	for _, h := range f.hosts {
		path := pods(t) + "/web-" + h
		a, err := f.on["a"].Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var p corev1.Pod
		if err := json.Unmarshal(a.Body, &p); err != nil {
			t.Fatal(err)
		}
		p.Labels = map[string]string{"changed": "yes"}
		body, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		a, err = f.on["a"].Want(ctx, http.StatusOK, http.MethodPut, path, "application/json", body)
		if err != nil {
			t.Errorf("pod of %s: %v", h, err)
			continue
		}
		var after corev1.Pod
		if err := json.Unmarshal(a.Body, &after); err != nil || after.Labels["changed"] != "yes" {
			t.Errorf("pod of %s: %v %s", h, err, a.Body)
		}
		if shown, err := f.on["a"].Pod(ctx, ns(t), "web-"+h); err != nil || shown.Labels["changed"] != "yes" {
			t.Errorf("pod of %s right after its change: %+v, %v", h, shown, err)
		}
		if a, err = f.on["a"].Call(ctx, http.MethodPut, path, "application/json", body); err != nil || a.Code != http.StatusConflict {
			t.Errorf("pod of %s with a version that is over: %d, %v", h, a.Code, err)
		}
	}
	f.testWatch(t, ctx)
}

// testWatch follows all nodes' pods through one gateway, from a list's version on.
func (f *fleet) testWatch(t *testing.T, ctx context.Context) {
	a, err := f.on["b"].Want(ctx, http.StatusOK, http.MethodGet, pods(t), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var l corev1.PodList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	watched := make(chan []string, 1)
	go func() {
		a, err := f.on["b"].Call(ctx, http.MethodGet, pods(t)+"?watch=true&timeoutSeconds=10&resourceVersion="+l.ResourceVersion, "", nil)
		if err != nil {
			watched <- []string{err.Error()}
			return
		}
		var added []string
		for line := range bytes.Lines(a.Body) {
			var e metav1.WatchEvent
			var p corev1.Pod
			if json.Unmarshal(line, &e) == nil && e.Type == "ADDED" && json.Unmarshal(e.Object.Raw, &p) == nil {
				added = append(added, p.Name)
			}
		}
		slices.Sort(added)
		watched <- added
	}()
	for i, h := range f.hosts {
		f.create(t, ctx, f.hosts[(i+1)%len(f.hosts)], "watched-"+h, h)
	}
	if got := <-watched; !slices.Equal(got, []string{"watched-a", "watched-b", "watched-c"}) {
		t.Errorf("a watch saw %v appear", got)
	}
}

// running gives the pods that are Ready, by name.
func (f *fleet) running(t *testing.T, ctx context.Context) map[string]*corev1.Pod {
	t.Helper()
	all := map[string]*corev1.Pod{}
	for _, name := range f.names(t, ctx, "a", "") {
		if name == "reader" {
			continue
		}
		p, err := f.on["a"].WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = p
	}
	return all
}

func (f *fleet) testServerKilled(t *testing.T, ctx context.Context) {
	before := f.running(t, ctx)
	if err := f.bus.Kill(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	for _, h := range f.hosts {
		// While a new leader is elected, 503 is an honest answer.
		testkit.Eventually(ctx, t, "a pod for "+h+" is taken", func(ctx context.Context) error {
			a, err := f.on["a"].Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(f.pod("two-servers-"+h, h)))
			if err == nil && a.Code != http.StatusCreated {
				err = fmt.Errorf("%d %s", a.Code, a.Body)
			}
			return err
		})
		if _, err := f.on["a"].WaitReady(ctx, ns(t), "two-servers-"+h); err != nil {
			t.Fatal(err)
		}
	}
	f.wantAsBefore(t, ctx, "a", before)
	if err := f.bus.Start("b"); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) testNoMajority(t *testing.T, ctx context.Context) {
	before := f.running(t, ctx)
	for _, h := range []string{"b", "c"} {
		if err := f.bus.Kill(ctx, h); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for _, h := range f.hosts {
		wg.Go(func() {
			refusedForNow(t, "a pod for "+h+" without a majority", f.post(t, ctx, h, "", f.pod("lost-"+h, h)))
		})
	}
	wg.Wait()
	for _, h := range f.hosts {
		if got := f.names(t, ctx, h, ""); len(got) < len(before) {
			t.Errorf("without a majority %s shows %v only", h, got)
		}
		if err := f.running1(ctx, t, h); err != nil {
			t.Errorf("without a majority: %v", err)
		}
	}
	for _, h := range []string{"b", "c"} {
		if err := f.bus.Start(h); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range f.hosts {
		testkit.Eventually(ctx, t, "a pod for "+h+" is taken again", func(ctx context.Context) error {
			a, err := f.on["a"].Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(f.pod("again-"+h, h)))
			if err == nil && a.Code != http.StatusCreated {
				err = fmt.Errorf("%d %s", a.Code, a.Body)
			}
			return err
		})
	}
	for _, h := range f.hosts {
		if _, err := f.on["a"].WaitReady(ctx, ns(t), "again-"+h); err != nil {
			t.Fatal(err)
		}
		// What was refused is not there, and does not come later.
		if err := f.on["a"].WaitGone(ctx, ns(t), "lost-"+h); err != nil {
			t.Error(err)
		}
	}
	f.wantAsBefore(t, ctx, "a", before)
}

// running1 asks a host's runtime whether the host's pod runs.
func (f *fleet) running1(ctx context.Context, t *testing.T, host string) error {
	p, err := f.on[host].Pod(ctx, ns(t), "web-"+host)
	if err != nil || p == nil {
		return fmt.Errorf("pod web-%s is not shown: %w", host, err)
	}
	seen, err := f.nodes[host].Client(t).PodStatus(ctx, string(p.UID))
	if err != nil {
		return err
	}
	if len(seen.Running()) != 1 {
		return fmt.Errorf("%d containers of web-%s run", len(seen.Running()), host)
	}
	return nil
}

func (f *fleet) testCut(t *testing.T, ctx context.Context) {
	before := f.running(t, ctx)
	if err := f.Cut("c"); err != nil {
		t.Fatal(err)
	}
	f.waitNode(t, ctx, "a", "c", corev1.ConditionUnknown)
	// The rest goes on.
	f.create(t, ctx, "a", "without-c", "b")
	if _, err := f.on["a"].WaitReady(ctx, ns(t), "without-c"); err != nil {
		t.Fatal(err)
	}
	refusedForNow(t, "a pod for the node that is away", f.post(t, ctx, "a", "", f.pod("lost-far", "c")))
	// The node itself keeps its pods, shows what it knows and takes nothing that it can't store.
	refusedForNow(t, "a pod on the node that is cut off", f.post(t, ctx, "c", "", f.pod("lost-near", "c")))
	refusedForNow(t, "a pod from the node that is cut off", f.post(t, ctx, "c", "", f.pod("lost-out", "a")))
	if err := f.running1(ctx, t, "c"); err != nil {
		t.Errorf("cut off: %v", err)
	}
	if got := f.names(t, ctx, "a", "?node=c"); !slices.Contains(got, "web-c") {
		t.Errorf("of the node that is away a shows %v", got)
	}
	if err := f.Heal("c"); err != nil {
		t.Fatal(err)
	}
	f.waitNode(t, ctx, "a", "c", corev1.ConditionTrue)
	f.waitNode(t, ctx, "c", "a", corev1.ConditionTrue)
	testkit.Eventually(ctx, t, "a pod for c is taken again", func(ctx context.Context) error {
		a, err := f.on["c"].Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(f.pod("healed", "c")))
		if err == nil && a.Code != http.StatusCreated {
			err = fmt.Errorf("%d %s", a.Code, a.Body)
		}
		return err
	})
	for _, via := range f.hosts {
		for _, name := range []string{"healed", "without-c"} {
			if _, err := f.on[via].WaitReady(ctx, ns(t), name); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"lost-far", "lost-near", "lost-out"} {
			if err := f.on[via].WaitGone(ctx, ns(t), name); err != nil {
				t.Error(err)
			}
		}
		f.wantAsBefore(t, ctx, via, before)
	}
}

func (f *fleet) testDeleteAll(t *testing.T, ctx context.Context) {
	var l corev1.PodList
	a, err := f.on["b"].Want(ctx, http.StatusOK, http.MethodDelete, pods(t)+"?node=a", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Items {
		if p.Spec.NodeName != "a" {
			t.Errorf("%s on %s was deleted with those of a", p.Name, p.Spec.NodeName)
		}
	}
	one := len(l.Items)
	all := len(f.names(t, ctx, "b", ""))
	if a, err = f.on["b"].Want(ctx, http.StatusOK, http.MethodDelete, pods(t), "", nil); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	if one == 0 || len(l.Items) == 0 || len(l.Items) > all {
		t.Errorf("%d pods of one node and %d of all were deleted, %d were there", one, len(l.Items), all)
	}
	for _, h := range f.hosts {
		testkit.Eventually(ctx, t, "no pod is left via "+h, func(ctx context.Context) error {
			if names := f.names(t, ctx, h, ""); len(names) > 0 {
				return fmt.Errorf("left: %v", names)
			}
			return nil
		})
		rt, err := f.nodes[h].Client(t).ListPods(ctx, cri.Filter{})
		if err != nil || len(rt) > 0 {
			t.Errorf("the runtime of %s still has %v, %v", h, rt, err)
		}
	}
}
