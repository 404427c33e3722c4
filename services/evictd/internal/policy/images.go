package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Image is what the garbage collection knows of an image.
type Image struct {
	ID     string
	Size   int64
	Pinned bool
	InUse  bool
	// DetectedAt is when it was first seen, LastUsed when it was last in use (or first seen).
	DetectedAt, LastUsed time.Time
}

// Collect returns the images to remove, the longest unused first, until at least free bytes are regained. Images that are
// in use, pinned, or younger than minAge stay. A negative free means all that may go.
func Collect(images []Image, free int64, minAge time.Duration, now time.Time) []Image {
	candidates := make([]Image, 0, len(images))
	for _, i := range images {
		if !i.InUse && !i.Pinned && now.Sub(i.DetectedAt) >= minAge {
			candidates = append(candidates, i)
		}
	}
	slices.SortFunc(candidates, func(a, b Image) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), a.DetectedAt.Compare(b.DetectedAt), strings.Compare(a.ID, b.ID))
	})
	if free < 0 {
		return candidates
	}
	regained := int64(0)
	for n, i := range candidates {
		if regained >= free {
			return candidates[:n]
		}
		regained += i.Size
	}
	return candidates
}

// Overdue returns the images that nobody has used for longer than maxAge; none where that is 0.
func Overdue(images []Image, maxAge time.Duration, now time.Time) []Image {
	if maxAge <= 0 {
		return nil
	}
	var old []Image
	for _, i := range Collect(images, -1, maxAge, now) {
		if now.Sub(i.LastUsed) > maxAge {
			old = append(old, i)
		}
	}
	return old
}

// ToFree is how many bytes must go so that a file system falls from above the high to the low threshold (in percent); 0
// when it is not above.
func ToFree(capacity, available int64, high, low int) int64 {
	if capacity <= 0 || high >= 100 {
		return 0
	}
	used := capacity - available
	if used*100 < capacity*int64(high) {
		return 0
	}
	return max(0, used-capacity/100*int64(low))
}
