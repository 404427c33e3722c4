package rest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// Options say how the client shows who it is, and whom it trusts. The zero value shows nothing and trusts the host's authorities.
type Options struct {
	// Token is a bearer token; TokenFile a file that holds one. One of them is enough.
	Token, TokenFile string
	// CA is a file with the authorities that may have signed gateway's certificate; empty: the host's.
	CA string
	// ClientCert and ClientKey are files with a certificate of the user's and its key; an empty ClientKey: the key is in the same file.
	ClientCert, ClientKey string
	// Pinned is a file with the very certificate that gateway shows; it replaces CA and the check of names.
	Pinned string
}

// token gives the bearer token; empty: none.
func (o Options) token() (string, error) {
	if o.Token != "" && o.TokenFile != "" {
		return "", errors.New("a token and a file with a token are named: one of them is enough")
	}
	token := o.Token
	if o.TokenFile != "" {
		data, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		if token = strings.TrimSpace(string(data)); token == "" {
			return "", fmt.Errorf("read the token: %s is empty", o.TokenFile)
		}
	}
	if strings.ContainsAny(token, " \r\n\t") {
		return "", errors.New("the token has blanks in it")
	}
	return token, nil
}

// secure gives the TLS configuration; nil: the defaults.
func (o Options) secure() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		data, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read the certificate authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("read the certificate authority: %s holds no certificate", o.CA)
		}
	}
	if o.ClientKey != "" && o.ClientCert == "" {
		return nil, errors.New("a client key is named and no client certificate")
	}
	if o.ClientCert != "" {
		key := o.ClientKey
		if key == "" {
			key = o.ClientCert
		}
		pair, err := tls.LoadX509KeyPair(o.ClientCert, key)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if o.Pinned != "" {
		o.pin(c)
	}
	return c, nil
}

// pin makes the connection trust one certificate, whatever its names and whoever signed it, as the file has it at that moment.
func (o Options) pin(c *tls.Config) {
	c.InsecureSkipVerify = true // checked here:
	c.VerifyConnection = func(s tls.ConnectionState) error {
		data, err := os.ReadFile(o.Pinned)
		if err != nil {
			return fmt.Errorf("read gateway's certificate: %w", err)
		}
		pinned, err := firstCert(data)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Pinned, err)
		}
		if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, pinned) {
			return errors.New("gateway shows another certificate than its own")
		}
		return nil
	}
}

func firstCert(data []byte) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("holds no certificate")
	}
	return block.Bytes, nil
}

// plain refuses to show secrets over HTTP to anything but this host.
func (o Options) plain(u *url.URL, token string) error {
	if u.Scheme == "https" {
		return nil
	}
	if o.ClientCert != "" {
		return fmt.Errorf("server address %q: a client certificate can be shown over https only", u)
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); token == "" || host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("server address %q: a token is sent over https, or to this host, only", u)
}
