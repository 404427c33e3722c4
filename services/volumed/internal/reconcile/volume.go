package reconcile

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func (p *Pod) volume(name string) *Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i]
		}
	}
	return nil
}

func (p *Pod) move(phase podplanev1.VolumePhase, now time.Time) {
	p.Phase, p.since, p.dirty = phase, now, true
}

// move changes phase and error and says whether that was a change.
func (v *Volume) move(phase podplanev1.VolumePhase, err string, now time.Time) bool {
	if v.Phase == phase && v.Error == err {
		return false
	}
	v.Phase, v.Error, v.Since = phase, err, now
	return true
}

func (v *Volume) record() *podplanev1.VolumeState {
	s := &podplanev1.VolumeState{
		Name: v.Name, Plugin: v.Plugin, Phase: v.Phase, HostPath: v.HostPath, ReadOnly: v.ReadOnly,
		Error: v.Error, Attributes: v.Attributes,
	}
	if !v.Since.IsZero() {
		s.Since = timestamppb.New(v.Since)
	}
	return s
}

// tellAge puts the age of the volume's operation into its error, once that is worth telling.
func (p *Pod) tellAge(v *Volume, now time.Time, what string, d *Decision) {
	if age, tell := v.Operation.age(now, d); tell {
		p.dirty = v.move(v.Phase, fmt.Sprintf("still being %s after %s", what, age), now) || p.dirty
	}
}

// age answers how old the operation is and whether that is to be told now: at SlowAfter, and each time it has doubled.
func (o *Operation) age(now time.Time, d *Decision) (time.Duration, bool) {
	age := now.Sub(o.Since)
	next := max(SlowAfter, 2*o.told)
	if age < next {
		d.wakeAt(o.Since.Add(next))
		return 0, false
	}
	o.told = age.Truncate(time.Second)
	d.wakeAt(o.Since.Add(2 * o.told))
	return o.told, true
}

func (d *Decision) wakeAt(t time.Time) {
	if d.Wake.IsZero() || t.Before(d.Wake) {
		d.Wake = t
	}
}
