package backup

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/podplane/podplane/internal/fault"
)

// A backup file begins with a line of JSON, head. What follows is sealed in chunks of chunkBytes with AES-256-GCM under a key that is derived
// from the user's and a salt of the file. A chunk's nonce is its number and whether it is the last one, and the head is authenticated
// with each, so that chunks can't be changed, left out, moved or cut off.

const (
	format     = 1
	chunkBytes = 64 << 10
	saltBytes  = 32
	maxHead    = 4 << 10

	sealed = "aes-256-gcm"
	clear  = "none"
)

type head struct {
	// Format is the version of the file's format.
	Format int `json:"podplaneBackup"`
	// Cipher is sealed or clear.
	Cipher string `json:"cipher"`
	Salt   string `json:"salt,omitempty"`
	// Key tells keys apart without giving them away.
	Key string `json:"key,omitempty"`
}

// fingerprint tells keys apart.
func fingerprint(key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("podplane backup key"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

func newCipher(key, salt string) (cipher.AEAD, error) {
	raw, err := hex.DecodeString(salt)
	if err != nil || len(raw) != saltBytes {
		return nil, fault.New(fault.Invalid, "the file's salt is none")
	}
	derived, err := hkdf.Key(sha256.New, []byte(key), raw, "podplane backup", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the file: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of the file: %w", err)
	}
	return cipher.NewGCM(block)
}

// nonceOf is the number of a chunk, and whether it is the last one.
func nonceOf(n uint64, last bool) []byte {
	nonce := make([]byte, 12)
	binary.BigEndian.PutUint64(nonce[3:11], n)
	if last {
		nonce[11] = 1
	}
	return nonce
}

// sealer writes a file; key "" writes it in the clear.
type sealer struct {
	w    io.Writer
	aead cipher.AEAD
	head []byte
	buf  []byte
	n    uint64
}

func newSealer(w io.Writer, key string) (*sealer, error) {
	h := head{Format: format, Cipher: clear}
	s := &sealer{w: w}
	if key != "" {
		salt := make([]byte, saltBytes)
		if _, err := rand.Read(salt); err != nil {
			return nil, fmt.Errorf("make the salt of the file: %w", err)
		}
		h.Cipher, h.Salt, h.Key = sealed, hex.EncodeToString(salt), fingerprint(key)
		var err error
		if s.aead, err = newCipher(key, h.Salt); err != nil {
			return nil, err
		}
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the head of the file: %w", err)
	}
	s.head = append(line, '\n')
	_, err = w.Write(s.head)
	return s, err
}

// Write takes a part of the content.
func (s *sealer) Write(p []byte) (int, error) {
	if s.aead == nil {
		return s.w.Write(p)
	}
	s.buf = append(s.buf, p...)
	// What may be the last chunk waits for Close.
	for len(s.buf) > chunkBytes {
		if err := s.flush(s.buf[:chunkBytes], false); err != nil {
			return 0, err
		}
		s.buf = append(s.buf[:0], s.buf[chunkBytes:]...)
	}
	return len(p), nil
}

// Close writes the end of the content; the file itself stays open.
func (s *sealer) Close() error {
	if s.aead == nil {
		return nil
	}
	return s.flush(s.buf, true)
}

func (s *sealer) flush(chunk []byte, last bool) error {
	_, err := s.w.Write(s.aead.Seal(nil, nonceOf(s.n, last), chunk, s.head))
	s.n++
	return err
}

// opener reads a file.
type opener struct {
	r    *bufio.Reader
	aead cipher.AEAD
	head []byte
	buf  bytes.Reader
	n    uint64
	end  bool
}

// readHead reads the head of a file.
func readHead(r *bufio.Reader) (head, []byte, error) {
	line, err := r.ReadSlice('\n')
	var h head
	if err != nil || len(line) > maxHead || json.Unmarshal(line, &h) != nil || h.Format == 0 {
		return h, nil, fault.New(fault.Invalid, "this is no backup of Podplane's")
	}
	if h.Format > format || (h.Cipher != sealed && h.Cipher != clear) {
		return h, nil, fault.New(fault.FailedPrecondition, "the backup has format %d with cipher %q, which a newer Podplane has written: take that one", h.Format, h.Cipher)
	}
	return h, bytes.Clone(line), nil
}

// headOf reads the head of a file that nobody reads on.
func headOf(r io.Reader) (head, error) {
	h, _, err := readHead(bufio.NewReaderSize(r, maxHead))
	return h, err
}

// newOpener opens what newSealer has written.
func newOpener(r io.Reader, key string) (*opener, error) {
	o := &opener{r: bufio.NewReaderSize(r, 2*chunkBytes)}
	h, line, err := readHead(o.r)
	if err != nil || h.Cipher == clear {
		return o, err
	}
	switch {
	case key == "":
		return nil, fault.New(fault.Invalid, "the backup is encrypted: name the file with its key, %s", h.Key)
	case h.Key != fingerprint(key):
		return nil, fault.New(fault.Invalid, "the backup is encrypted with another key (%s) than the one given (%s)", h.Key, fingerprint(key))
	}
	o.head = line
	o.aead, err = newCipher(key, h.Salt)
	return o, err
}

var errBroken = fault.New(fault.Invalid, "the backup is damaged or not whole")

// Read gives the content; its end only when the file is whole.
func (o *opener) Read(p []byte) (int, error) {
	if o.aead == nil {
		return o.r.Read(p)
	}
	for o.buf.Len() == 0 {
		if o.end {
			return 0, io.EOF
		}
		if err := o.next(); err != nil {
			return 0, err
		}
	}
	return o.buf.Read(p)
}

func (o *opener) next() error {
	chunk := make([]byte, chunkBytes+o.aead.Overhead())
	n, err := io.ReadFull(o.r, chunk)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		if errors.Is(err, io.EOF) {
			return errBroken // the last chunk did not come
		}
		return err
	}
	_, peek := o.r.Peek(1)
	last := peek != nil
	if peek != nil && !errors.Is(peek, io.EOF) {
		return peek
	}
	plain, err := o.aead.Open(chunk[:0], nonceOf(o.n, last), chunk[:n], o.head)
	if err != nil {
		return errBroken
	}
	o.n++
	o.end = last
	o.buf.Reset(plain)
	return nil
}
