package rest_test

import (
	"crypto/tls"
	"testing"

	"github.com/podplane/podplane/internal/pki"
)

func serverTLS(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(pki.CertFile(dir, pki.HTTPS), pki.KeyFile(dir, pki.HTTPS))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
}
