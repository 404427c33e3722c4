package backup

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/fault"
)

const testKey = "0123456789abcdef0123456789abcdef"

func sealed1(t testing.TB, key string, content []byte, step int) []byte {
	t.Helper()
	var file bytes.Buffer
	s, err := newSealer(&file, key)
	if err != nil {
		t.Fatal(err)
	}
	for rest := content; len(rest) > 0; {
		n := min(step, len(rest))
		if _, err := s.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func opened(file []byte, key string) ([]byte, error) {
	o, err := newOpener(bytes.NewReader(file), key)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(o)
}

// TestSealed reads back what was written, for every interesting length, and finds each way in which a file can be changed.
func TestSealed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 2 * chunkBytes, 3*chunkBytes + 7} {
		content := make([]byte, n)
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		for _, key := range []string{"", testKey} {
			file := sealed1(t, key, content, 1+random.IntN(chunkBytes*2))
			if got, err := opened(file, key); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes with key %q: read %d back, %v", n, key, len(got), err)
			}
		}
		file := sealed1(t, testKey, content, chunkBytes)
		if n > 16 && bytes.Contains(file, content[:16]) {
			t.Fatalf("%d bytes are in the clear", n)
		}
		head := bytes.IndexByte(file, '\n') + 1
		for _, at := range []int{head, (head + len(file)) / 2, len(file) - 1} {
			changed := bytes.Clone(file)
			changed[at] ^= 1
			if _, err := opened(changed, testKey); !fault.Is(err, fault.Invalid) {
				t.Errorf("%d bytes, changed at %d: %v", n, at, err)
			}
			if _, err := opened(file[:at], testKey); !fault.Is(err, fault.Invalid) {
				t.Errorf("%d bytes, cut at %d: %v", n, at, err)
			}
		}
		if _, err := opened(append(bytes.Clone(file), 0), testKey); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
	}
	// Whole chunks left out or exchanged.
	content := bytes.Repeat([]byte("x"), 3*chunkBytes)
	file := sealed1(t, testKey, content, chunkBytes)
	head, size := bytes.IndexByte(file, '\n')+1, chunkBytes+16
	one, two, three := file[head:head+size], file[head+size:head+2*size], file[head+2*size:]
	for name, chunks := range map[string][][]byte{"without the first": {two, three}, "exchanged": {two, one, three}, "without the last": {one, two}, "without any": {}} {
		if _, err := opened(append(bytes.Clone(file[:head]), bytes.Join(chunks, nil)...), testKey); !fault.Is(err, fault.Invalid) {
			t.Errorf("chunks %s: %v", name, err)
		}
	}
}

// TestHeads are the beginnings of files that are not, or not by this key, ours to read.
func TestHeads(t *testing.T) {
	file := sealed1(t, testKey, []byte("content"), 100)
	other := strings.Repeat("z", 32)
	for name, c := range map[string]struct {
		file []byte
		key  string
		kind fault.Kind
		says string
	}{
		"no key":      {file, "", fault.Invalid, "name the file with its key"},
		"another key": {file, other, fault.Invalid, "another key"},
		"no backup":   {[]byte("PK\x03\x04 something\n"), testKey, fault.Invalid, "no backup"},
		"empty":       {nil, testKey, fault.Invalid, "no backup"},
		"long head":   {bytes.Repeat([]byte("a"), 1<<20), testKey, fault.Invalid, "no backup"},
		"newer":       {[]byte(`{"podplaneBackup":2,"cipher":"none"}` + "\n"), testKey, fault.FailedPrecondition, "newer Podplane"},
		"new cipher":  {[]byte(`{"podplaneBackup":1,"cipher":"rot13"}` + "\n"), testKey, fault.FailedPrecondition, "newer Podplane"},
		"short salt":  {[]byte(`{"podplaneBackup":1,"cipher":"aes-256-gcm","salt":"00","key":"` + fingerprint(testKey) + `"}` + "\n"), testKey, fault.Invalid, "salt"},
		"other head":  {bytes.Replace(file, []byte(`"podplaneBackup":1`), []byte(`"podplaneBackup": 1`), 1), testKey, fault.Invalid, "damaged"},
	} {
		if _, err := opened(c.file, c.key); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), testKey) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.kind, c.says)
		}
	}
}

// FuzzVerify gives anything as a backup: it is refused or read, in bounded time and memory.
func FuzzVerify(f *testing.F) {
	f.Add([]byte("x"))
	f.Add([]byte(`{"podplaneBackup":1,"cipher":"none"}` + "\n"))
	f.Add(sealed1(f, testKey, []byte("content"), 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := newOpener(bytes.NewReader(data), testKey)
		if err != nil {
			return
		}
		if m, err := verify(o); err == nil && len(m.Streams) == 0 {
			t.Error("a backup of nothing is taken as one")
		}
	})
}
