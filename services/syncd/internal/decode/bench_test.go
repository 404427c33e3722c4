package decode_test

import (
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/decode"
)

func BenchmarkPodYAML(b *testing.B) {
	for b.Loop() {
		if _, err := decode.Pod(decode.Input{Data: []byte(goodYAML)}); err != nil {
			b.Fatal(err)
		}
	}
}
