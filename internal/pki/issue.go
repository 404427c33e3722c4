package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// Names of files in a directory of certificates, without .crt and .key.
const (
	// CA signs processes' certificates and the front door's; ca.crt may hold several, the first signs.
	CA = "ca"
	// ClientCA signs people's certificates.
	ClientCA = "client-ca"
	// HTTPS is the front door's certificate.
	HTTPS = "https"
	// Bus is the NATS server's.
	Bus = "nats"
)

// How long certificates are good for. A certificate is renewed in the last third of its time.
const (
	CALifetime   = 10 * 365 * 24 * time.Hour
	LeafLifetime = 365 * 24 * time.Hour
	// backdate bears clocks that are behind.
	backdate = 5 * time.Minute
)

// domain is that of processes' names.
const domain = ".podplane.internal"

// Name gives the name by which a process' certificate is known, as in syncd.podplane.internal.
func Name(process string) string { return process + domain }

// CertFile and KeyFile give the paths of a certificate and its key.
func CertFile(dir, name string) string { return filepath.Join(dir, name+".crt") }

// KeyFile gives the path of a key.
func KeyFile(dir, name string) string { return filepath.Join(dir, name+".key") }

// Options say what Ensure makes.
type Options struct {
	// Processes get a certificate each, for both ends of a connection.
	Processes []string
	// Hosts are the names and addresses by which the front door is reached, besides localhost.
	Hosts []string
	// Renew makes all certificates anew, also those that are good for long.
	Renew bool
	// RotateCA puts a new authority before the present ones, and makes all certificates anew.
	RotateCA bool
	// Now is the time; zero: the present.
	Now time.Time
}

// Ensure makes what is missing in the directory, runs out or does not fit, and gives the names of the certificates that it made.
func Ensure(dir string, o Options) (made []string, err error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of certificates: %w", err)
	}
	authorities := map[string]*authority{}
	for name, subject := range map[string]string{CA: "Podplane", ClientCA: "Podplane users"} {
		a, fresh, err := ensureAuthority(dir, name, subject, o)
		if err != nil {
			return made, fmt.Errorf("authority %s: %w", name, err)
		}
		if fresh {
			made = append(made, name)
		}
		authorities[name] = a
	}
	leaves := []leaf{httpsLeaf(o.Hosts)}
	for _, p := range append(slices.Clone(o.Processes), Bus) {
		leaves = append(leaves, leaf{name: p, template: x509.Certificate{
			Subject: pkix.Name{CommonName: p}, DNSNames: []string{Name(p)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}})
	}
	for _, l := range leaves {
		if !o.Renew && l.stands(dir, authorities[CA], o.Now) {
			continue
		}
		if err := l.write(dir, authorities[CA], o.Now, LeafLifetime); err != nil {
			return made, fmt.Errorf("certificate %s: %w", l.name, err)
		}
		made = append(made, l.name)
	}
	slices.Sort(made)
	return made, nil
}

// NewClient makes a user's certificate and key in the directory, named after the user.
func NewClient(dir, user string, groups []string, lifetime time.Duration) error {
	if user != filepath.Base(user) || strings.HasPrefix(user, ".") {
		return fault.New(fault.Invalid, "the user %q can't name a file", user)
	}
	for _, taken := range []string{CA, ClientCA, HTTPS, Bus} {
		if user == taken {
			return fault.New(fault.Invalid, "the user can't be called %q: a file of that name is Podplane's own", user)
		}
	}
	if c, err := readLeaf(CertFile(dir, user)); err == nil && len(c.DNSNames) > 0 {
		return fault.New(fault.Invalid, "the user can't be called %q: a file of that name is Podplane's own", user)
	}
	if lifetime <= 0 || lifetime > CALifetime {
		return fault.New(fault.Invalid, "a certificate must be good for more than 0s and at most %s", CALifetime)
	}
	a, err := readAuthority(dir, ClientCA)
	if err != nil {
		return fmt.Errorf("authority %s: %w", ClientCA, err)
	}
	l := leaf{name: user, template: x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}}
	return l.write(dir, a, time.Now(), lifetime)
}

func httpsLeaf(hosts []string) leaf {
	t := x509.Certificate{
		Subject: pkix.Name{CommonName: "Podplane"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip == nil {
			t.DNSNames = append(t.DNSNames, h)
		} else {
			t.IPAddresses = append(t.IPAddresses, ip)
		}
	}
	return leaf{name: HTTPS, template: t, keepsHosts: len(hosts) == 0}
}

// authority is a certificate that signs others.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func ensureAuthority(dir, name, subject string, o Options) (a *authority, fresh bool, err error) {
	a, err = readAuthority(dir, name)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return nil, false, err
	}
	if !missing && !o.RotateCA && !runsOut(a.cert, o.Now) {
		return a, false, nil
	}
	old, readErr := os.ReadFile(CertFile(dir, name))
	if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
		return nil, false, readErr
	}
	if missing && readErr == nil {
		return nil, false, fault.New(fault.FailedPrecondition, "%s is there and its key is not: bring %s back to make certificates", CertFile(dir, name), KeyFile(dir, name))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, false, fmt.Errorf("make a key: %w", err)
	}
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: subject + " CA"}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(&template, &authority{&template, key}, &key.PublicKey, o.Now, CALifetime)
	if err != nil {
		return nil, false, err
	}
	// What the former authority signed stays good until everybody has a new one: it stays in the bundle.
	bundle := append(encodeCert(cert), old...)
	if err := writePair(dir, name, bundle, key); err != nil {
		return nil, false, err
	}
	return &authority{cert, key}, true, nil
}

func readAuthority(dir, name string) (*authority, error) {
	cert, err := readLeaf(CertFile(dir, name))
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(KeyFile(dir, name))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fault.New(fault.Invalid, "%s holds no key", KeyFile(dir, name))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s: %w", KeyFile(dir, name), err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fault.New(fault.Invalid, "%s is not the key of %s", KeyFile(dir, name), CertFile(dir, name))
	}
	return &authority{cert, key}, nil
}

// leaf is a certificate that signs nothing.
type leaf struct {
	name     string
	template x509.Certificate
	// keepsHosts leaves the names of one that is there.
	keepsHosts bool
}

// stands says whether the certificate that is there is good for long and is what would be made.
func (l *leaf) stands(dir string, a *authority, now time.Time) bool {
	c, err := readLeaf(CertFile(dir, l.name))
	if err != nil {
		return false
	}
	if l.keepsHosts {
		l.template.DNSNames, l.template.IPAddresses = c.DNSNames, c.IPAddresses
	}
	if _, err := os.Stat(KeyFile(dir, l.name)); err != nil || runsOut(c, now) || c.CheckSignatureFrom(a.cert) != nil {
		return false
	}
	return slices.Equal(c.DNSNames, l.template.DNSNames) && slices.EqualFunc(c.IPAddresses, l.template.IPAddresses, net.IP.Equal)
}

func (l *leaf) write(dir string, a *authority, now time.Time, lifetime time.Duration) error {
	if l.keepsHosts {
		if c, err := readLeaf(CertFile(dir, l.name)); err == nil {
			l.template.DNSNames, l.template.IPAddresses = c.DNSNames, c.IPAddresses
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	l.template.KeyUsage, l.template.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	cert, err := sign(&l.template, a, &key.PublicKey, now, lifetime)
	if err != nil {
		return err
	}
	return writePair(dir, l.name, encodeCert(cert), key)
}

// sign makes a certificate; a template signed by itself is an authority.
func sign(template *x509.Certificate, by *authority, public *ecdsa.PublicKey, now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-backdate), now.Add(lifetime)
	if template != by.cert && template.NotAfter.After(by.cert.NotAfter) {
		template.NotAfter = by.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, public, by.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return x509.ParseCertificate(der)
}

func runsOut(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func readLeaf(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fault.New(fault.Invalid, "%s holds no certificate", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s: %w", path, err)
	}
	return c, nil
}

// writePair writes the key, then the certificate, each whole or not at all. A reader between the two finds a pair that does not fit and
// keeps what it has.
func writePair(dir, name string, cert []byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key: %w", err)
	}
	if err := replace(KeyFile(dir, name), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return replace(CertFile(dir, name), cert, 0o644)
}

func replace(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}
