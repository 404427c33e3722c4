package relist_test

import (
	"testing"
	"time"
)

// TestNoRoomWhileAnInspectionHangs: the retry of what found no room waits for the inspection, and the loop rests meanwhile: here, where
// time only passes while everybody rests, the test would not end.
func TestNoRoomWhileAnInspectionHangs(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		sleep(time.Second)
		f.out.lines()
		f.ForgetCalls()
		release := f.Hang("container_status", c)
		f.DropEvents(true)
		f.must(f.StartContainer(t.Context(), c))
		for waited := 0; len(f.Calls("container_status")) == 0 && waited < 700; waited++ {
			sleep(100 * time.Millisecond)
		}
		f.out.setFull(true)
		f.DropEvents(false)
		f.Exit(c, 1, "Error")
		sleep(10 * time.Second)
		f.out.expect(t)
		f.out.setFull(false)
		release()
		sleep(11 * time.Second)
		f.out.expect(t, "ContainerStarted "+c, "ContainerDied "+c)
	}, nil)
}
