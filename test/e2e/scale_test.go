package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

const replicas = "prober=3,syncd=2,volumed=2,pleg=2,evictd=2"

// scaled are the services that have replicas, with the shards that they divide.
var scaled = map[string]int{"syncd": shard.Count, "prober": shard.Count, "volumed": shard.Count, "pleg": 1, "evictd": 1}

const loadPod = `
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// newScaledStack is a Podplane with several replicas of each service.
func newScaledStack(t *testing.T) *harness.Stack {
	t.Helper()
	node := testkit.Containerd(t)
	name := strings.ToLower(t.Name())
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: name, Root: filepath.Join(node.Dir, name),
		CgroupRoot: filepath.Join(node.CgroupParent, name), Args: []string{"--replicas", replicas},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// spread waits until every shard is held by one of so many live replicas of each service, fairly.
func spread(t *testing.T, ctx context.Context, s *harness.Stack, want map[string]int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	testkit.Eventually(ctx, t, fmt.Sprintf("the shards are spread over %v", want), func(ctx context.Context) error {
		list, err := s.Services(ctx)
		if err != nil {
			return err
		}
		for service, n := range want {
			if err := spreadOf(list, service, n); err != nil {
				return err
			}
		}
		return nil
	})
}

func spreadOf(list []harness.Service, service string, n int) error {
	count := scaled[service]
	least, most := count/n, (count+n-1)/n
	var held []int
	workers := 0
	for _, r := range list {
		if r.Service != service || !alive(r.PID) {
			continue
		}
		workers++
		held = append(held, r.Shards...)
		if len(r.Shards) < least || len(r.Shards) > most {
			return fmt.Errorf("%s %s has %d shards, want %d to %d", service, r.Instance, len(r.Shards), least, most)
		}
	}
	slices.Sort(held)
	if workers != n || len(held) != count || len(slices.Compact(held)) != count {
		return fmt.Errorf("%d replicas of %s have the shards %v", workers, service, held)
	}
	return nil
}

func alive(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && syscall.Kill(n, 0) == nil
}

// TestScale scales every service up and down, gracefully and not, while 30 pods are created and deleted: no pod is lost,
// none is started twice, no container is restarted.
func TestScale(t *testing.T) {
	s, ctx := newScaledStack(t), testContextOf(t, 10*time.Minute)
	spread(t, ctx, s, map[string]int{"syncd": 2, "prober": 3, "volumed": 2, "pleg": 2, "evictd": 2})
	steady := map[string]harness.Life{}
	for i := range 4 {
		name := fmt.Sprintf("steady-%d", i)
		if _, err := s.Apply(ctx, ns(t), manifest(name, loadPod)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		name := fmt.Sprintf("steady-%d", i)
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		steady[name] = harness.LifeOf(p)
	}
	load := startLoad(t, ctx, s, 5, 6)
	services := []string{"syncd", "prober", "volumed", "pleg", "evictd"}
	for round := 0; !load.over() || round < 2; round++ {
		scaleOnce(t, ctx, s, services[round%len(services)], round)
	}
	load.wait(t)
	spread(t, ctx, s, map[string]int{"syncd": 2, "prober": 3, "volumed": 2, "pleg": 2, "evictd": 2})
	for name, want := range steady {
		p, err := s.Pod(ctx, ns(t), name)
		if err != nil || p == nil {
			t.Fatalf("pod %s: %v, %v", name, p, err)
		}
		if got := harness.LifeOf(p); got != want {
			t.Errorf("%s is %+v, was %+v", name, got, want)
		}
	}
	wantNoStrayContainers(t, s, len(steady))
}

// scaleOnce adds a replica and takes one away: the added one gracefully, or an old one with SIGKILL.
func scaleOnce(t *testing.T, ctx context.Context, s *harness.Stack, service string, round int) {
	t.Helper()
	added, err := s.AddReplica(service)
	if err != nil {
		t.Fatal(err)
	}
	n := 3
	if service == "prober" {
		n = 4
	}
	spread(t, ctx, s, map[string]int{service: n})
	sig := syscall.SIGTERM
	if round%2 == 1 {
		sig = syscall.SIGKILL
		if err := s.Kill(service); err != nil {
			t.Fatal(err)
		}
	}
	if err := added.Stop(ctx, sig); err != nil {
		t.Fatalf("stop the added %s: %v", service, err)
	}
	began := time.Now()
	spread(t, ctx, s, map[string]int{service: n - 1})
	t.Logf("round %d: %s scaled up and down (%v); spread again after %v", round, service, sig, time.Since(began).Round(10*time.Millisecond))
}

// load creates and deletes pods.
type load struct {
	wg   sync.WaitGroup
	done chan struct{}
	mu   sync.Mutex
	errs []error
}

// startLoad runs so many lanes, in each of which so many pods live one after the other.
func startLoad(t *testing.T, ctx context.Context, s *harness.Stack, lanes, each int) *load {
	l := &load{done: make(chan struct{})}
	for lane := range lanes {
		l.wg.Go(func() {
			for i := range each {
				if err := onePod(ctx, s, ns(t), fmt.Sprintf("load-%d-%d", lane, i)); err != nil {
					l.mu.Lock()
					l.errs = append(l.errs, err)
					l.mu.Unlock()
					return
				}
			}
		})
	}
	go func() {
		l.wg.Wait()
		close(l.done)
	}()
	return l
}

func (l *load) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *load) wait(t *testing.T) {
	t.Helper()
	<-l.done
	if err := errors.Join(l.errs...); err != nil {
		t.Fatal(err)
	}
}

// onePod lives a pod's life, in which one container is started once.
func onePod(ctx context.Context, s *harness.Stack, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := applyUntilStored(ctx, s, namespace, manifest(name, loadPod)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p, err := s.WaitReady(ctx, namespace, name)
	if err != nil {
		return err
	}
	uid := string(p.UID)
	if err := deleteUntilTaken(ctx, s, namespace, name); err != nil {
		return err
	}
	if err := s.WaitGone(ctx, namespace, name); err != nil {
		return err
	}
	return startedOnce(ctx, s, name, uid)
}

func deleteUntilTaken(ctx context.Context, s *harness.Stack, namespace, name string) error {
	for {
		err := s.Delete(ctx, namespace, name, -1)
		p, getErr := s.Pod(ctx, namespace, name)
		if err == nil || getErr == nil && (p == nil || p.DeletionTimestamp != nil) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s can't be deleted: %w", name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startedOnce reads in the journal that one container of a pod was started and died, once. A container whose start was cut off by the
// end of the process that asked for it never ran: it has an end, but no start.
func startedOnce(ctx context.Context, s *harness.Stack, name, uid string) error {
	for {
		list, err := lifecycle(ctx, s, uid)
		started, died := 0, 0
		ran := map[string]bool{}
		for _, e := range list {
			switch {
			case e.Type == "LIFECYCLE_TYPE_CONTAINER_STARTED":
				started++
				ran[e.ContainerID] = true
			case e.Type == "LIFECYCLE_TYPE_CONTAINER_DIED" && ran[e.ContainerID]:
				died++
			}
		}
		if started > 1 || died > 1 {
			return fmt.Errorf("%s (%s): containers were started %d times and died %d times: %+v", name, uid, started, died, list)
		}
		if err == nil && started == 1 && died == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s (%s): the journal has %d starts and %d ends (%v)", name, uid, started, died, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// written is who wrote a record.
type written struct {
	bucket, key, instance string
	shard                 int
}

// followWriters collects what one bucket's writers store until ctx ends.
func followWriters[T proto.Message](ctx context.Context, t *testing.T, c *bus.Conn, spec bus.BucketSpec[T], node string, take func(written)) {
	t.Helper()
	b, err := bus.Open(ctx, c, spec)
	if err != nil {
		t.Fatal(err)
	}
	synced := make(chan struct{})
	go func() {
		present := true
		_ = b.Watch(ctx, bus.NodePattern(node), bus.Handler[T]{
			Apply: func(e bus.Entry[T]) {
				parts, err := bus.SplitKey(e.Key)
				if present || e.Deleted || err != nil || len(parts) < 2 {
					return
				}
				_, instance, _ := strings.Cut(e.Writer, "/")
				take(written{spec.Name, e.Key, instance, shard.Of(parts[1])})
			},
			Synced: func() { present = false; close(synced) },
		})
	}()
	select {
	case <-synced:
	case <-ctx.Done():
		t.Fatalf("the records of %s are not shown: %v", spec.Name, ctx.Err())
	}
}

// TestHolderStoppedPastItsLease stops a replica of each service longer than its lease, lets others take over, and lets it
// go on: it does nothing to the shards that it had.
func TestHolderStoppedPastItsLease(t *testing.T) {
	s, ctx := newScaledStack(t), testContextOf(t, 5*time.Minute)
	all := map[string]int{"syncd": 2, "prober": 3, "volumed": 2, "pleg": 2, "evictd": 2}
	spread(t, ctx, s, all)
	const count = 12
	before := map[string]harness.Life{}
	for i := range count {
		if _, err := s.Apply(ctx, ns(t), manifest(fmt.Sprintf("p-%d", i), loadPod)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		name := fmt.Sprintf("p-%d", i)
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = harness.LifeOf(p)
	}
	stopped, release := stopHolders(t, ctx, s)
	for service, instance := range stopped {
		testkit.Eventually(ctx, t, "others have the shards of "+service, func(ctx context.Context) error {
			list, err := s.Services(ctx)
			if err != nil {
				return err
			}
			var held int
			for _, r := range list {
				if r.Service == service && r.Instance != instance {
					held += len(r.Shards)
				}
			}
			if held != scaled[service] {
				return fmt.Errorf("they have %d of %d", held, scaled[service])
			}
			return nil
		})
	}
	var mu sync.Mutex
	var seen []written
	conn := connectAs(t, s, bus.ServiceCLI)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	take := func(w written) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, w)
	}
	followWriters(watching, t, conn, bus.Status, s.Node(), take)
	followWriters(watching, t, conn, bus.Volumes, s.Node(), take)
	followWriters(watching, t, conn, bus.Probes, s.Node(), take)
	release()
	// While the former holders wake up, their pods change: half of them go.
	for i := range count / 2 {
		if err := s.Delete(ctx, ns(t), fmt.Sprintf("p-%d", i), -1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count / 2 {
		if err := s.WaitGone(ctx, ns(t), fmt.Sprintf("p-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	spread(t, ctx, s, all)
	owners := map[string]map[int]string{}
	list, err := s.Services(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if owners[r.Service] == nil {
			owners[r.Service] = map[int]string{}
		}
		for _, n := range r.Shards {
			owners[r.Service][n] = r.Instance
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) == 0 {
		t.Error("nobody wrote anything: the test looks at nothing")
	}
	writers := map[string]string{bus.BucketStatus: "syncd", bus.BucketVolumes: "volumed", bus.BucketProbes: "prober"}
	for _, w := range seen {
		service := writers[w.bucket]
		if w.instance == stopped[service] && owners[service][w.shard] != w.instance {
			t.Errorf("%s %s, which had been stopped, wrote %s of shard %d, which is not its own", service, w.instance, w.key, w.shard)
		}
	}
	for i := count / 2; i < count; i++ {
		name := fmt.Sprintf("p-%d", i)
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := harness.LifeOf(p); got.Container != before[name].Container || got.Restarts != 0 {
			t.Errorf("%s is %+v, was %+v", name, got, before[name])
		}
	}
	wantNoStrayContainers(t, s, count/2)
}

// stopHolders stops a replica of each service that works on shards, by SIGSTOP, until release.
func stopHolders(t *testing.T, ctx context.Context, s *harness.Stack) (instances map[string]string, release func()) {
	t.Helper()
	list, err := s.Services(ctx)
	if err != nil {
		t.Fatal(err)
	}
	instances = map[string]string{}
	var pids []int
	for _, r := range list {
		pid, err := strconv.Atoi(r.PID)
		if scaled[r.Service] == 0 || instances[r.Service] != "" || len(r.Shards) == 0 || err != nil {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		instances[r.Service] = r.Instance
		pids = append(pids, pid)
	}
	release = sync.OnceFunc(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT) // gone already, if it fails
		}
	})
	t.Cleanup(release)
	return instances, release
}
