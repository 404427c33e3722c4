package images

import (
	"fmt"
	"strings"
)

// dockerHub is how Docker's registry is named in image references.
const dockerHub = "docker.io"

// maxName is the greatest length of a repository's full name.
const maxName = 255

// reference is an image's name, taken apart.
type reference struct {
	host, path  string
	tag, digest string
}

// repository is the full name without tag and digest: what credentials are for.
func (r reference) repository() string { return r.host + "/" + r.path }

// parseReference takes a reference apart, by the grammar that container tools share: [host[:port]/]path[:tag][@digest]. What has no host is
// Docker Hub's, and an official image of it when it has no user.
func parseReference(image string) (reference, error) {
	var r reference
	name, digest, hasDigest := strings.Cut(image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, r.tag = name[:i], name[i+1:]
		if !isTag(r.tag) {
			return r, fmt.Errorf("invalid reference format: tag %q", r.tag)
		}
	}
	if hasDigest {
		if r.digest = digest; !isDigest(digest) {
			return r, fmt.Errorf("invalid reference format: digest %q", digest)
		}
	}
	if isHex(name) && len(name) == 64 {
		return r, fmt.Errorf("invalid repository name (%s), cannot specify 64-byte hexadecimal strings", name)
	}
	r.host, r.path = splitHost(name)
	switch {
	case !isHost(r.host):
		return r, fmt.Errorf("invalid reference format: host %q", r.host)
	case strings.ToLower(r.path) != r.path:
		return r, fmt.Errorf("invalid reference format: repository name (%s) must be lowercase", r.path)
	case !isPath(r.path):
		return r, fmt.Errorf("invalid reference format: repository name %q", r.path)
	case len(r.host)+1+len(r.path) > maxName:
		return r, fmt.Errorf("repository name must not be more than %d characters", maxName)
	}
	return r, nil
}

// splitHost finds out whether a name begins with a registry's host.
func splitHost(name string) (host, path string) {
	host, path, ok := strings.Cut(name, "/")
	if !ok || (!strings.ContainsAny(host, ".:") && host != "localhost" && strings.ToLower(host) == host) {
		host, path = dockerHub, name
	}
	if host == "index.docker.io" {
		host = dockerHub
	}
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	return host, path
}

func isTag(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' || s[0] == '-' {
		return false
	}
	return all(s, func(c byte) bool { return isAlnum(c) || c == '_' || c == '.' || c == '-' })
}

// isDigest checks <algorithm>:<hex>, where the algorithm has parts that begin with a letter.
func isDigest(s string) bool {
	algorithm, hex, ok := strings.Cut(s, ":")
	if !ok || len(hex) < 32 || !isHexAnyCase(hex) {
		return false
	}
	for _, part := range strings.Split(strings.NewReplacer("-", ".", "_", ".", "+", ".").Replace(algorithm), ".") {
		if part == "" || isDigit(part[0]) || !all(part, isLowerAlnum) {
			return false
		}
	}
	return true
}

func isHost(s string) bool {
	name, port, hasPort := s, "", false
	if strings.HasPrefix(s, "[") {
		address, rest, ok := strings.Cut(s[1:], "]")
		if !ok || address == "" || !all(address, func(c byte) bool { return c == ':' || isHexAnyCase(string(c)) }) {
			return false
		}
		if rest == "" {
			return true
		}
		name, port, hasPort = "v6", strings.TrimPrefix(rest, ":"), strings.HasPrefix(rest, ":")
		if !hasPort {
			return false
		}
	} else {
		name, port, hasPort = strings.Cut(s, ":")
	}
	if hasPort && (port == "" || !all(port, isDigit)) {
		return false
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || !all(label, func(c byte) bool { return isAlnum(c) || c == '-' }) {
			return false
		}
	}
	return true
}

// isPath checks components of lower-case letters and digits, which ".", "_", "__" or any number of "-" may separate.
func isPath(path string) bool {
	for _, part := range strings.Split(path, "/") {
		if part == "" || !isLowerAlnum(part[0]) || !isLowerAlnum(part[len(part)-1]) {
			return false
		}
		for i := 0; i < len(part); {
			begin := i
			for i < len(part) && !isLowerAlnum(part[i]) {
				i++
			}
			if s := part[begin:i]; s != "" && s != "." && s != "_" && s != "__" && strings.Trim(s, "-") != "" {
				return false
			}
			i++
		}
	}
	return true
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool     { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool      { return c >= '0' && c <= '9' }
func isAlnum(c byte) bool      { return isLetter(c) || isDigit(c) }
func isLowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || isDigit(c) }

func isHex(s string) bool {
	return all(s, func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' })
}

func isHexAnyCase(s string) bool { return isHex(strings.ToLower(s)) }
