// Package tokens keeps the bearer tokens of people and programs in a file, without the tokens themselves.
//
// A token is "ppt_<id>_<secret>"; the secret has 256 random bits, so that the file holds no more than its SHA-256 (a slow hash protects what
// people choose, and nobody chooses these). The id finds the entry, and names the token in lists and in the audit log; it is no secret. Changes are made whole
// or not at all, under a lock beside the file, so that commands may run at the same time as the gateway reads.
package tokens

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/internal/fault"
)

const (
	prefix      = "ppt_"
	hashPrefix  = "sha256:"
	idBytes     = 5
	secretBytes = 32

	// MaxLength is the length of the longest token that is looked at.
	MaxLength = 128
	// MaxName is the length of the longest name of a user or group.
	MaxName = 253
)

// Token is one entry of the file.
type Token struct {
	// ID names the token; it is part of it.
	ID string `json:"id"`
	// User is who shows it.
	User string `json:"user"`
	// Groups are those that the user is in.
	Groups []string `json:"groups,omitempty"`
	// Hash is "sha256:" and the hash of the whole token in hexadecimal digits.
	Hash string `json:"hash"`
	// Created is when it was made.
	Created time.Time `json:"created,omitzero"`
	// Expires is when it ends; zero: never.
	Expires time.Time `json:"expires,omitzero"`
}

// Expired says whether the token has ended.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// document is the file.
type document struct {
	Tokens []Token `json:"tokens"`
}

// Set is what a file holds, by id.
type Set struct{ byID map[string]Token }

// Parse reads a file. Unknown keys, doubled ids, names and hashes that can't be right are errors.
func Parse(data []byte) (*Set, error) {
	doc, err := decode(data)
	if err != nil {
		return nil, err
	}
	s := &Set{byID: make(map[string]Token, len(doc.Tokens))}
	for _, t := range doc.Tokens {
		s.byID[t.ID] = t
	}
	return s, nil
}

func decode(data []byte) (document, error) {
	var doc document
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return doc, fault.New(fault.Invalid, "not a file of tokens: %w", err)
	}
	seen := map[string]bool{}
	for i, t := range doc.Tokens {
		switch {
		case t.ID == "" || seen[t.ID]:
			return doc, fault.New(fault.Invalid, "tokens[%d]: the id %q is empty or there twice", i, t.ID)
		case CheckName(t.User) != nil:
			return doc, fault.New(fault.Invalid, "tokens[%d].user: %w", i, CheckName(t.User))
		case len(t.Hash) != len(hashPrefix)+2*sha256.Size || !strings.HasPrefix(t.Hash, hashPrefix):
			return doc, fault.New(fault.Invalid, "tokens[%d].hash: must be sha256: and 64 hexadecimal digits", i)
		}
		if _, err := hex.DecodeString(strings.TrimPrefix(t.Hash, hashPrefix)); err != nil {
			return doc, fault.New(fault.Invalid, "tokens[%d].hash: must be sha256: and 64 hexadecimal digits", i)
		}
		for _, g := range t.Groups {
			if err := CheckName(g); err != nil {
				return doc, fault.New(fault.Invalid, "tokens[%d].groups: %w", i, err)
			}
		}
		seen[t.ID] = true
	}
	return doc, nil
}

// CheckName says why a name can be neither a user's nor a group's. Names that begin with "system:" belong to Podplane itself.
func CheckName(name string) error {
	switch {
	case name == "":
		return fault.New(fault.Invalid, "a name must not be empty")
	case len(name) > MaxName:
		return fault.New(fault.Invalid, "a name must not be longer than %d bytes", MaxName)
	case strings.HasPrefix(name, "system:"):
		return fault.New(fault.Invalid, "the name %q begins with system:, which is for Podplane itself", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == 0xfffd }):
		return fault.New(fault.Invalid, "the name %q has blanks, control characters or stars", name)
	}
	return nil
}

// Lookup finds whose token this is. The error is of kind Unauthenticated, never holds the token, and does not tell an unknown token from a
// wrong one.
func (s *Set) Lookup(token string, now time.Time) (Token, error) {
	id, ok := idOf(token)
	if !ok {
		return Token{}, fault.New(fault.Unauthenticated, "the bearer token is not one of Podplane's")
	}
	t := s.byID[id] // no entry has an empty hash
	if subtle.ConstantTimeCompare([]byte(hash(token)), []byte(strings.ToLower(t.Hash))) != 1 {
		return Token{}, fault.New(fault.Unauthenticated, "the bearer token is unknown or has been revoked")
	}
	if t.Expired(now) {
		return Token{}, fault.New(fault.Unauthenticated, "the bearer token expired at %s", t.Expires.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func idOf(token string) (string, bool) {
	rest, ok := strings.CutPrefix(token, prefix)
	id, secret, two := strings.Cut(rest, "_")
	return id, ok && two && id != "" && secret != "" && len(token) <= MaxLength
}

// Hash gives the hash of a token as the file has it.
func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// generate makes a token and its entry.
func generate(user string, groups []string, now, expires time.Time) (string, Token) {
	raw := make([]byte, idBytes+secretBytes)
	_, _ = rand.Read(raw) // never fails
	id := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw[:idBytes]))
	secret := prefix + id + "_" + base64.RawURLEncoding.EncodeToString(raw[idBytes:])
	return secret, Token{ID: id, User: user, Groups: groups, Hash: hash(secret), Created: now.UTC().Truncate(time.Second), Expires: expires}
}

// Local makes a token that is in no file: of this host for itself.
func Local() string {
	secret, _ := generate("local", nil, time.Time{}, time.Time{})
	return secret
}
