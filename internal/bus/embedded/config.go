package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// AuthorizationConfig is the authorization block of a nats-server's configuration file with these users: for a server that is not this
// process, as in deploy/. It holds public keys only.
func AuthorizationConfig(users []User) string {
	var b strings.Builder
	b.WriteString("# Written by podplane nats-config from the declarations of internal/bus; changes are lost.\nauthorization {\n  users = [\n")
	for _, u := range users {
		fmt.Fprintf(&b, "    {\n      nkey: %s\n", strconv.Quote(u.PublicKey))
		if !u.Full {
			b.WriteString("      permissions: {\n")
			writeSubjects(&b, "publish", u.Publish)
			writeSubjects(&b, "subscribe", u.Subscribe)
			b.WriteString("      }\n")
		}
		b.WriteString("    }\n")
	}
	b.WriteString("  ]\n}\n")
	return b.String()
}

func writeSubjects(b *strings.Builder, verb string, subjects []string) {
	fmt.Fprintf(b, "        %s: {allow: [\n", verb)
	for _, s := range subjects {
		fmt.Fprintf(b, "          %s\n", strconv.Quote(s))
	}
	b.WriteString("        ]}\n")
}

// EncryptionConfig is the part of a nats-server's jetstream block that encrypts the streams on disk, with the key in a file, which is
// made if it is missing. Without that file the streams can't be read any more.
func EncryptionConfig(keyFile string) (string, error) {
	key, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		random := make([]byte, 32)
		if _, err := rand.Read(random); err != nil {
			return "", fmt.Errorf("make the key of the streams: %w", err)
		}
		key = []byte(hex.EncodeToString(random))
		err = os.WriteFile(keyFile, key, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("key of the streams: %w", err)
	}
	return fmt.Sprintf("cipher: chacha\nkey: %s\n", strconv.Quote(strings.TrimSpace(string(key)))), nil
}
