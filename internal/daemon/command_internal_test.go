package daemon

import "testing"

func TestThreads(t *testing.T) {
	for cores, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 6: 3, 8: 4, 9: 4, 128: 4} {
		if got := threads(cores); got != want {
			t.Errorf("threads(%d) = %d, want %d", cores, got, want)
		}
	}
}
