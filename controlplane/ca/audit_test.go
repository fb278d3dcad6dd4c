// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"crypto"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// secrets are texts that no log may contain, in all encodings in which they could occur.
type secrets []string

func (s *secrets) key(t *testing.T, text []byte) {
	t.Helper()
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return
		}
		text = rest
		encoded := base64.StdEncoding.EncodeToString(block.Bytes)
		// The middle, because the start and the end are the same for all keys of one type.
		*s = append(*s, encoded[len(encoded)/3:len(encoded)/3+24], string(block.Bytes[len(block.Bytes)/3:len(block.Bytes)/3+16]))
		if key, err := certs.ParseKey(pem.EncodeToMemory(block)); err == nil {
			s.private(t, key)
		}
	}
}

func (s *secrets) private(t *testing.T, key crypto.Signer) {
	t.Helper()
	if e, ok := key.(interface{ Bytes() ([]byte, error) }); ok {
		raw, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		*s = append(*s, string(raw), base64.StdEncoding.EncodeToString(raw)[:30])
	}
}

func (s secrets) check(t *testing.T, log string) {
	t.Helper()
	for _, banned := range append(secrets{"-----BEGIN", "Bearer"}, s...) {
		if strings.Contains(log, banned) {
			t.Errorf("the log contains %q", banned)
		}
	}
}

// TestAudit makes requests that are granted or refused for every reason, and checks the log.
func TestAudit(t *testing.T) {
	t.Parallel()
	var hidden secrets
	log := &syncBuffer{}
	a := serve(t, func(c *ca.ServiceConfig) {
		c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.CallerLimit = ca.Limit{PerSecond: 0.001, Burst: 6}
	})
	token := a.token(t, a.tokenKey, nil)
	hidden = append(hidden, token, token[20:60], strings.Split(token, ".")[2])
	c := a.caller(t, "web")
	key := newKey(t, certs.ECDSAP256)
	hidden.private(t, key)
	c.csr = string(newCSR(t, key, web()))
	hidden = append(hidden, strings.Split(c.csr, "\n")[2])
	resp, err := c.ask()
	if err != nil {
		t.Fatal(err)
	}
	leaf := parse(t, []byte(resp.GetCertChain()[0]))[0]

	for want, ask := range map[codes.Code]func() error{
		codes.InvalidArgument: func() error {
			c.csr = string(keyPEM(t, key)) // a key instead of a request
			_, err := c.ask()
			return err
		},
		codes.Unauthenticated: func() error { _, err := c.ask("ImpersonatedIdentity", token); return err },
	} {
		if err := ask(); status.Code(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for range 10 {
		_, err = c.ask()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got error %v, want RESOURCE_EXHAUSTED", err)
	}
	hidden.key(t, keyPEM(t, key))
	hidden.check(t, log.String()+a.log.String())

	var issued []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == "certificate issued" {
			issued = append(issued, entry)
		}
	}
	if len(issued) != 1 {
		t.Fatalf("%d log lines for one certificate, want 1", len(issued))
	}
	for name, want := range map[string]string{
		"identity": web().String(), "name": web().String(), "source": "jwt", "kind": "workload",
		"serial": strings.ToUpper(leaf.SerialNumber.Text(16)), "expires": leaf.NotAfter.UTC().Format(time.RFC3339),
		"reason": "requested its own identity; signed by self-signed",
	} {
		if issued[0][name] != want {
			t.Errorf("%s is %v, want %s", name, issued[0][name], want)
		}
	}
	if address, _ := issued[0]["address"].(string); !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("the address is %q, want one on 127.0.0.1", address)
	}
}

// TestRotationLogContainsNoKey checks the complete log of root rotations, invalid files and a
// failing store.
func TestRotationLogContainsNoKey(t *testing.T) {
	t.Parallel()
	plugged := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store, log := &memory{}, &syncBuffer{}
		var hidden secrets
		a := replica(t, func(c *ca.Config) {
			c.Store, c.PluginDir, c.Root.TTL = store, plugged, 40*time.Hour
			c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		p := newPKI(t, "one")
		for hour := range 60 {
			signsFor(t, a, p.cert)
			m, _, err := store.Load(t.Context())
			if err == nil {
				hidden.key(t, m["ca-key.pem"])
				hidden.key(t, m["next-key.pem"])
			}
			switch hour {
			case 5:
				store.set(func(s *memory) { s.m["ca-cert.pem"] = s.m["ca-key.pem"] })
			case 8:
				store.set(func(s *memory) { s.m = nil })
			case 42:
				write(t, plugged, map[string][]byte{"ca-key.pem": keyPEM(t, p.key), "ca-cert.pem": keyPEM(t, p.key)})
			case 45:
				write(t, plugged, p.files(t))
			case 50:
				store.set(func(s *memory) { s.saveErr = errors.New("the disk is full") })
				write(t, plugged, newPKI(t, "two").files(t))
			}
			time.Sleep(time.Hour)
		}
		hidden.key(t, keyPEM(t, p.key))
		if len(hidden) < 8 || log.String() == "" {
			t.Fatalf("%d secrets and %d bytes of log are too few for this test", len(hidden), len(log.String()))
		}
		hidden.check(t, log.String())
		for _, want := range []string{"a new authority is distributed", "a new authority signs", "a root is no longer trusted", "is rejected"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not contain %q", want)
			}
		}
	})
}
