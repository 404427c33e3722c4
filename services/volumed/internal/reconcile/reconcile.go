package reconcile

import (
	"fmt"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Numbers of the machine.
const (
	// FirstRetry and MaxRetry bound the back-off after failed operations.
	FirstRetry = 500 * time.Millisecond
	MaxRetry   = 2*time.Minute + 2*time.Second
	// Quiet is how long a pod may be PENDING or TEARING_DOWN without an error before that is published: most are READY
	// or GONE before, and the next record need not wait for the acknowledgement of this one.
	Quiet = 100 * time.Millisecond
	// OrphanAfter is how long the volumes of a pod stay whose record vanished though it was not terminated. That is not
	// how a pod ends: the bus may have lost the record, and containers may still run.
	OrphanAfter = 5 * time.Second
	// SlowAfter is the age at which an operation is named in its volume's error. The age is refreshed each time that
	// it has doubled.
	SlowAfter = 5 * time.Second
)

// The phases, under short names.
const (
	Pending     = podplanev1.VolumePhase_VOLUME_PHASE_PENDING
	Ready       = podplanev1.VolumePhase_VOLUME_PHASE_READY
	TearingDown = podplanev1.VolumePhase_VOLUME_PHASE_TEARING_DOWN
	Gone        = podplanev1.VolumePhase_VOLUME_PHASE_GONE
)

// Wish is a volume of a pod's spec.
type Wish struct {
	// Name is the volume's name in the spec, Plugin the plugin's, as in kubernetes.io/empty-dir.
	Name   string
	Plugin string
	// Object is the key in bucket "objects" that the content comes from; empty for none.
	Object string
}

// Input is what is known about the pod from elsewhere.
type Input struct {
	// Synced: the pods and their statuses have been read completely. Nothing is done before.
	Synced bool
	// Wanted: the pod's record exists.
	Wanted bool
	// Terminated: no container of the pod runs and none will.
	Terminated bool
	// Wishes are the volumes of the spec. They never change for a UID.
	Wishes []Wish
	// Revision answers the revision in which an object was last seen, 0 for one that was not. Nil: none was.
	Revision func(object string) uint64
}

func (in Input) revision(object string) uint64 {
	if object == "" || in.Revision == nil {
		return 0
	}
	return in.Revision(object)
}

// Operation is work under way on a volume, or on all of a pod's.
type Operation struct {
	Busy  bool
	Since time.Time
	// told is the age that was last told in an error.
	told time.Duration
}

// Backoff spaces the repetitions of something that fails.
type Backoff struct {
	Failures int
	RetryAt  time.Time
}

func (b *Backoff) fail(now time.Time) {
	d := FirstRetry
	for i := 0; i < b.Failures && d < MaxRetry; i++ {
		d *= 2
	}
	b.Failures++
	b.RetryAt = now.Add(min(d, MaxRetry))
}

// Volume is the state of one volume.
type Volume struct {
	Wish
	Phase      podplanev1.VolumePhase
	HostPath   string
	ReadOnly   bool
	Attributes map[string]string
	// Error says why the volume is not as it should be. A READY volume may have one: its content could not be renewed.
	Error string
	// Since is when Phase or Error last changed.
	Since     time.Time
	Operation Operation
	Backoff   Backoff

	// checked: an operation of this process has succeeded. What an earlier process has set up is looked at once.
	checked bool
	// tried is the object's revision that was known when the last operation began, applied the one that it used.
	tried, applied uint64
}

// Pod is the state of a pod's volumes. The zero value is a pod that was not seen before.
type Pod struct {
	Phase   podplanev1.VolumePhase
	Volumes []Volume
	// Teardown is the operation on all of them.
	Teardown Operation
	Backoff  Backoff

	since     time.Time // of the phase
	gone      time.Time // the pod's record is not there, since then
	dirty     bool      // the record does not show the state yet
	published bool      // there is a record
}

// Decision is what has to happen now.
type Decision struct {
	// Setup names the volumes to set up, or whose content to renew. Each must be answered by SetupDone.
	Setup []string
	// Cancel: the operations under way are to end soon, as their result is not wanted any more.
	Cancel bool
	// Teardown: unmount and remove everything that the pod has. Must be answered by TeardownDone.
	Teardown bool
	// Publish: the state is to be written to the pod's record.
	Publish bool
	// Forget: nothing is left to do for the pod. Remove: its record is to be deleted.
	Forget, Remove bool
	// Wake is when to decide again without an event; zero for never.
	Wake time.Time
}

// Restore returns the state of a pod from the record that an earlier process wrote. sameBoot says whether the node was
// not started since.
func Restore(r *podplanev1.VolumesRecord, sameBoot bool, now time.Time) Pod {
	p := Pod{Phase: r.GetPhase(), since: now, published: true}
	if p.Phase == Ready && !sameBoot {
		p.Phase, p.dirty = Pending, true
	}
	for _, s := range r.GetVolumes() {
		v := Volume{
			Wish: Wish{Name: s.GetName(), Plugin: s.GetPlugin()}, Phase: s.GetPhase(), HostPath: s.GetHostPath(),
			ReadOnly: s.GetReadOnly(), Error: s.GetError(), Since: s.GetSince().AsTime(), Attributes: s.GetAttributes(),
		}
		if p.Phase == Pending {
			v.Phase, v.HostPath = Pending, ""
		}
		p.Volumes = append(p.Volumes, v)
	}
	return p
}

// Reconcile decides what has to happen to p, and remembers that it will.
func Reconcile(p *Pod, in Input, now time.Time) Decision {
	var d Decision
	if !in.Synced {
		return d
	}
	switch {
	case in.Terminated || p.Phase == TearingDown || p.Phase == Gone:
		p.down(in, now, &d)
	case in.Wanted:
		p.gone = time.Time{}
		p.up(in, now, &d)
	case p.orphaned(now, &d):
		p.down(in, now, &d)
	}
	p.publish(in, now, &d)
	return d
}

func (p *Pod) orphaned(now time.Time, d *Decision) bool {
	if p.gone.IsZero() {
		p.gone = now
	}
	at := p.gone.Add(OrphanAfter)
	if now.Before(at) {
		d.wakeAt(at)
		return false
	}
	return true
}

func (p *Pod) up(in Input, now time.Time, d *Decision) {
	if p.Phase == podplanev1.VolumePhase_VOLUME_PHASE_UNSPECIFIED {
		p.move(Pending, now)
	}
	p.adopt(in.Wishes, now)
	for i := range p.Volumes {
		v := &p.Volumes[i]
		if v.Operation.Busy {
			p.tellAge(v, now, "set up", d)
			continue
		}
		rev := in.revision(v.Object)
		changed := rev != v.tried && rev != v.applied
		switch {
		case v.settled() && !changed:
			continue
		case !changed && now.Before(v.Backoff.RetryAt):
			d.wakeAt(v.Backoff.RetryAt)
			continue
		}
		v.tried = rev
		v.Operation = Operation{Busy: true, Since: now}
		d.Setup = append(d.Setup, v.Name)
		d.wakeAt(now.Add(SlowAfter))
	}
}

// settled says whether nothing is left to do for the volume as it is wished now.
func (v *Volume) settled() bool {
	return v.Phase == Ready && v.checked && v.Backoff.Failures == 0
}

// adopt makes a volume of each wish that has none, and completes those from a record.
func (p *Pod) adopt(wishes []Wish, now time.Time) {
	for _, w := range wishes {
		if v := p.volume(w.Name); v != nil {
			v.Wish = w
			continue
		}
		p.Volumes = append(p.Volumes, Volume{Wish: w, Phase: Pending, Since: now})
		p.dirty = true
	}
}

func (p *Pod) down(in Input, now time.Time, d *Decision) {
	if p.Phase == Gone {
		d.Forget = !in.Wanted
		d.Remove = d.Forget && p.published
		return
	}
	if p.Phase != TearingDown {
		p.move(TearingDown, now)
		p.adopt(in.Wishes, now)
		for i := range p.Volumes {
			p.Volumes[i].move(TearingDown, "", now)
		}
	}
	for i := range p.Volumes {
		if p.Volumes[i].Operation.Busy {
			d.Cancel = true
			p.tellAge(&p.Volumes[i], now, "set up, and can't be torn down,", d)
		}
	}
	switch {
	case d.Cancel:
	case p.Teardown.Busy:
		age, tell := p.Teardown.age(now, d)
		for i := range p.Volumes {
			if v := &p.Volumes[i]; tell && v.Phase != Gone {
				p.dirty = v.move(v.Phase, fmt.Sprintf("still being torn down after %s", age), now) || p.dirty
			}
		}
	case now.Before(p.Backoff.RetryAt):
		d.wakeAt(p.Backoff.RetryAt)
	default:
		p.Teardown = Operation{Busy: true, Since: now}
		d.Teardown = true
		d.wakeAt(now.Add(SlowAfter))
	}
}

// publish decides whether the record is to be written. What nobody would miss is not: a state that is over in a moment,
// and the smooth end of a pod that has no record.
func (p *Pod) publish(in Input, now time.Time, d *Decision) {
	if !p.dirty || d.Forget {
		return
	}
	if !p.failed() && (p.Phase == TearingDown || p.Phase == Pending && !p.published) {
		if quiet := p.since.Add(Quiet); now.Before(quiet) {
			d.wakeAt(quiet)
			return
		}
		if !in.Wanted && !p.published {
			return
		}
	}
	p.dirty, p.published = false, true
	d.Publish = true
}

func (p *Pod) failed() bool {
	for i := range p.Volumes {
		if p.Volumes[i].Error != "" {
			return true
		}
	}
	return false
}

// SetupResult is how the set-up of a volume ended.
type SetupResult struct {
	HostPath   string
	ReadOnly   bool
	Attributes map[string]string
	// Revision is the revision of the object that was used; 0 for none.
	Revision uint64
	// Error says what went wrong; empty when nothing did. It must not hold a secret.
	Error string
}

// SetupDone takes the result of a set-up that Reconcile asked for.
func SetupDone(p *Pod, volume string, r SetupResult, now time.Time) {
	v := p.volume(volume)
	if v == nil {
		return
	}
	v.Operation = Operation{}
	if p.Phase != Pending && p.Phase != Ready {
		return // it is being torn down: the result does not matter
	}
	if r.Error != "" {
		v.Backoff.fail(now)
		p.dirty = v.move(v.Phase, r.Error, now) || p.dirty
		return
	}
	v.Backoff, v.checked, v.applied = Backoff{}, true, r.Revision
	p.dirty = v.move(Ready, "", now) || v.HostPath != r.HostPath || p.dirty
	v.HostPath, v.ReadOnly, v.Attributes = r.HostPath, r.ReadOnly, r.Attributes
	for i := range p.Volumes {
		if p.Volumes[i].Phase != Ready {
			return
		}
	}
	if p.Phase != Ready {
		p.move(Ready, now)
	}
}

// TeardownDone takes the result of a teardown: the errors by volume, and one that is about none of them. Empty: nothing
// is left of the pod's volumes.
func TeardownDone(p *Pod, errs map[string]string, general string, now time.Time) {
	p.Teardown = Operation{}
	p.dirty = true
	for name := range errs {
		if p.volume(name) == nil { // found on disk, not in a spec
			p.Volumes = append(p.Volumes, Volume{Wish: Wish{Name: name}})
		}
	}
	for i := range p.Volumes {
		v := &p.Volumes[i]
		switch e, failed := errs[v.Name]; {
		case failed:
			v.move(TearingDown, e, now)
		case general != "":
			v.move(TearingDown, general, now)
		default:
			v.move(Gone, "", now)
			v.HostPath = ""
		}
	}
	if len(errs) > 0 || general != "" {
		p.Backoff.fail(now)
		return
	}
	p.move(Gone, now)
}

// Record returns the state as it is kept on the bus, without what the pod itself says.
func (p *Pod) Record() *podplanev1.VolumesRecord {
	r := &podplanev1.VolumesRecord{Schema: 1, Phase: p.Phase}
	for i := range p.Volumes {
		r.Volumes = append(r.Volumes, p.Volumes[i].record())
	}
	return r
}
