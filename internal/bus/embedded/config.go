package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/podplane/podplane/internal/fault"
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

// EncryptionConfig is the part of a nats-server's jetstream block that encrypts the records in storeDir on disk, with the key in a file, which
// is made for a server that has no records yet. A key that is gone, or another one than before, is refused: the server would leave out
// what it can't read, and who looked for it would begin anew.
func EncryptionConfig(storeDir, keyFile string) (string, error) {
	if err := settleKey(storeDir, keyFile); err != nil {
		return "", err
	}
	if _, err := os.Stat(keyFile); errors.Is(err, fs.ErrNotExist) && hasRecords(storeDir) {
		return "", fault.New(fault.FailedPrecondition,
			"there are records in %s and their key %s is gone: bring it back, nothing else reads them; to begin with nothing, remove the records", storeDir, keyFile)
	}
	key, err := storeKey(storeDir, keyFile)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("cipher: chacha\nkey: %s\n", strconv.Quote(key)), nil
}

// hasRecords says whether a server has kept streams in a directory.
func hasRecords(storeDir string) bool {
	_, err := os.Stat(filepath.Join(storeDir, "jetstream"))
	return err == nil
}
