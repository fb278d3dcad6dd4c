// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// openssl runs openssl with the files in its working directory.
func openssl(t *testing.T, files map[string][]byte, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	cmd := exec.CommandContext(t.Context(), "openssl", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func needOpenSSL(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not on the PATH; the test needs a library other than Go's")
	}
}

// verifiesByOpenSSL verifies a chain with openssl, as that of a client and as that of a server.
func verifiesByOpenSSL(t *testing.T, what string, at time.Time, roots []byte, elements [][]byte) {
	t.Helper()
	for _, purpose := range []string{"sslclient", "sslserver"} {
		files := map[string][]byte{"roots.pem": roots, "leaf.pem": elements[0]}
		args := []string{"verify", "-x509_strict", "-attime", strconv.FormatInt(at.Unix(), 10), "-purpose", purpose, "-CAfile", "roots.pem"}
		if len(elements) > 2 {
			files["between.pem"] = bytes.Join(elements[1:len(elements)-1], nil)
			args = append(args, "-untrusted", "between.pem")
		}
		if out, err := openssl(t, files, append(args, "leaf.pem")...); err != nil || !strings.Contains(out, "leaf.pem: OK") {
			t.Errorf("%s, %s: %v\n%s", what, purpose, err, out)
		}
	}
}

func TestOpenSSLVerifies(t *testing.T) {
	t.Parallel()
	needOpenSSL(t)
	for _, kt := range []certs.KeyType{certs.ECDSAP256, certs.ECDSAP384, certs.RSA2048, certs.RSA3072} {
		t.Run(string(kt), func(t *testing.T) {
			t.Parallel()
			a := open(t, func(c *ca.Config) { c.Root.KeyType = kt })
			for _, leaf := range []certs.KeyType{certs.ECDSAP256, certs.RSA2048} {
				elements, err := sign(t, a, newCSR(t, newKey(t, leaf), web()), time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				verifiesByOpenSSL(t, string(leaf), time.Now(), a.RootPEM(), elements)
			}
		})
	}
	t.Run("made by openssl", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		const ext = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
		write(t, dir, map[string][]byte{"ext": []byte(ext)})
		for _, line := range []string{
			"req -x509 -newkey rsa:2048 -nodes -keyout root-key.pem -out root-cert.pem -days 100 -subj /O=test/CN=root -addext keyUsage=critical,keyCertSign,cRLSign",
			"req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -keyout ca-key.pem -out ca.csr -subj /O=test/CN=intermediate",
			"x509 -req -in ca.csr -CA root-cert.pem -CAkey root-key.pem -CAcreateserial -extfile ext -days 50 -out ca-cert.pem",
		} {
			cmd := exec.CommandContext(t.Context(), "openssl", strings.Fields(line)...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("openssl %s: %v\n%s", line, err, out)
			}
		}
		a := open(t, func(c *ca.Config) { c.PluginDir = dir })
		elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		root, err := os.ReadFile(filepath.Join(dir, "root-cert.pem"))
		if err != nil {
			t.Fatal(err)
		}
		verifiesByOpenSSL(t, "leaf", time.Now(), root, elements)
	})
}

// TestOpenSSLVerifiesDuringRotation records the responses of each phase and verifies each with the
// roots of every other phase in which it is valid.
func TestOpenSSLVerifiesDuringRotation(t *testing.T) {
	t.Parallel()
	needOpenSSL(t)
	type answer struct {
		phase    string
		elements [][]byte
	}
	answers := map[string]answer{}
	plugged := t.TempDir()
	var end time.Time // in the fake time of the test
	synctest.Test(t, func(t *testing.T) {
		one, two := newPKI(t, "one"), newPKI(t, "two")
		write(t, plugged, one.files(t))
		a := replica(t, func(c *ca.Config) { c.PluginDir, c.Propagation, c.Poll = plugged, 10*time.Minute, time.Minute })
		for minute := range 20 {
			elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 2*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			answers[a.Phase()] = answer{a.Phase(), elements}
			if minute == 2 {
				write(t, plugged, two.files(t))
			}
			time.Sleep(time.Minute)
		}
		end = time.Now()
	})
	for _, pair := range [][2]string{{"steady", "steady"}, {"steady", "add"}, {"add", "steady"}, {"add", "add"}, {"add", "switch"}, {"switch", "add"}, {"switch", "switch"}} {
		leaf, roots := answers[pair[0]], answers[pair[1]]
		if leaf.elements == nil || roots.elements == nil {
			t.Fatalf("there was no phase %s or %s", pair[0], pair[1])
		}
		verifiesByOpenSSL(t, "leaf of phase "+pair[0]+" with roots of phase "+pair[1], end, roots.elements[len(roots.elements)-1], leaf.elements)
	}
}
