// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

func TestCredentialsOf(t *testing.T) {
	t.Parallel()
	hour, day := newSignerFor(t, time.Hour), newSignerFor(t, 24*time.Hour)
	text := func(signers ...*signer) (out []byte) {
		for _, s := range signers {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.root.Raw})...)
		}
		return out
	}
	key := []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
	in := func(s *signer, what, then, by string) lasting {
		return lasting{What: what, Until: s.root.NotAfter, Then: then, By: by}
	}
	const refuse, below, covered = "peers refuse it", "peers below it are refused", "covered peers are refused"
	for name, c := range map[string]struct {
		secret   envoy.Secret
		external bool
		after    time.Duration
		want     []lasting
	}{
		"the first of a chain ends it": {envoy.Secret{Name: "kubernetes://tls", Chain: text(day, hour)}, false, 0, []lasting{in(hour, "certificate tls", refuse, "the owner of Secret shop/tls")}},
		"another namespace":            {envoy.Secret{Name: "kubernetes-gateway://a/tls", Chain: text(day)}, false, 0, []lasting{in(day, "certificate a/tls", refuse, "the owner of Secret a/tls")}},
		"the next root":                {envoy.Secret{Name: "kubernetes://tls-cacert", Roots: text(day, hour)}, false, 0, []lasting{in(hour, "roots tls-cacert", below, "the owner of Secret shop/tls-cacert or shop/tls")}},
		"one root has ended":           {envoy.Secret{Name: "configmap://a/ca-cacert", Roots: text(day, hour)}, false, 2 * time.Hour, []lasting{in(day, "roots a/ca-cacert", below, "the owner of ConfigMap a/ca")}},
		"all roots have ended":         {envoy.Secret{Name: "file-root:/ca.pem", Roots: text(hour, day)}, false, 48 * time.Hour, []lasting{in(day, "roots /ca.pem", below, "the program that writes /ca.pem")}},
		"files":                        {envoy.Secret{Name: "file-cert:/c~/k", Chain: text(hour)}, false, 0, []lasting{in(hour, "certificate /c", refuse, "the program that writes /c and /k")}},
		"revocations": {envoy.Secret{Name: "kubernetes://ca", CRL: hour.crl(t, time.Hour, hour.root.SerialNumber)}, false, 0, []lasting{
			{What: "revocations ca", Until: hour.root.NotAfter, Then: covered, By: "the owner of Secret shop/ca"},
		}},
		"neither PEM nor a list": {envoy.Secret{Name: "kubernetes://x", Chain: key, Roots: []byte("x"), CRL: key}, false, 0, []lasting{
			{What: "certificate x", Missing: true, Unknown: true, Then: "its text cannot be read", By: "the owner of Secret shop/x"},
			{What: "revocations x", Missing: true, Unknown: true, Then: "its text cannot be read", By: "the owner of Secret shop/x"},
			{What: "roots x", Missing: true, Unknown: true, Then: "its text cannot be read", By: "the owner of Secret shop/x"},
		}},
		"of an EnvoyFilter":           {envoy.Secret{Name: "a\x1b\nb", Chain: text(hour)}, false, 0, []lasting{in(hour, "certificate a\\x1b\nb", refuse, "the server of the secret a\\x1b\nb")}},
		"no certificate":              {envoy.Secret{Name: "token"}, false, 0, nil},
		"the workload's own":          {envoy.Secret{Name: "default", Chain: text(hour)}, false, 0, nil},
		"own, of another server":      {envoy.Secret{Name: "default", Chain: text(hour)}, true, 0, []lasting{in(hour, "certificate default", refuse, "the server of the secret default")}},
		"the system's, for an hour":   {envoy.Secret{Name: "file-root:system", Roots: text(hour)}, false, 0, nil},
		"the system's, other servers": {envoy.Secret{Name: "file-root:system", Roots: text(hour)}, true, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := (&credentials{namespace: "shop", external: c.external}).of(c.secret)
			got := lastingOf(list, time.Now().Add(c.after))
			near := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() < time.Minute })
			if diff := cmp.Diff(c.want, got, near); diff != "" {
				t.Error(diff)
			}
			if doc, err := json.Marshal(got); err != nil || strings.Contains(string(doc), "c2VjcmV0") {
				t.Errorf("%s %v", doc, err)
			}
		})
	}
}

// TestCredentialsBounded checks that there are lines for the first that end, each once, and one for the others.
func TestCredentialsBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	list := []credential{{what: "certificate unknown", part: partCertificate}}
	for i := range 100 {
		list = append(list, credential{what: fmt.Sprint("certificate ", i/2), part: partCertificate, ends: []time.Time{now.Add(time.Duration(200-i) * time.Hour)}})
	}
	got := lastingOf(list, now)
	if len(got) != maxCredentials+1 || !got[0].Unknown || got[1].What != "certificate 49" || got[1].Until.Sub(now).Round(time.Hour) != 101*time.Hour ||
		got[20].What != "other credentials" || got[20].Then != "the first of 31 ends" || got[20].Until.Sub(now).Round(time.Hour) != 139*time.Hour {
		t.Errorf("got %+v", got)
	}
}

// TestCredentialsFail checks the line and the metric when Envoy does not answer, and that Envoy is not asked
// for each of several scrapes.
func TestCredentialsFail(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	c := newCredentials(t.Context(), envoy.NewAdmin(strings.TrimPrefix(server.URL, "http://")), "shop", false, nil)
	if _, err := c.all(); err == nil {
		t.Fatal("there is no error")
	}
	c.read = time.Now().Add(time.Hour) // on a slow machine, too
	_, err := c.all()
	parts := holdings{unknown: err}.outage(time.Now()).Credentials
	if asked != 1 || len(parts) != 1 || !parts[0].Unknown || parts[0].What != "credentials" || !strings.Contains(parts[0].Then, "busy") {
		t.Errorf("Envoy was asked %d times: %+v", asked, parts)
	}
	got := gathered(t, outageCollector{func() holdings { return holdings{identity: time.Now(), unknown: errors.New("busy")} }})
	if _, ok := got["credentials"]; ok || len(got) != 1 {
		t.Errorf("the metric is %v", got)
	}
}

// TestEnvoyFiles checks which content of a file that Envoy reads itself is announced: the one that Envoy
// has read, as long as that is known.
func TestEnvoyFiles(t *testing.T) {
	t.Parallel()
	authority, path := newSigner(t), filepath.Join(t.TempDir(), "crl.pem")
	write := func(life time.Duration) time.Time {
		text := authority.crl(t, life, big.NewInt(2))
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		next, err := sds.NextUpdate(text)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	asked, accepted, file := 0, time.Now(), envoy.File{Field: envoy.FileCRL, Path: path, Roots: "roots"}
	f := envoyFiles{
		list: func(fn func(envoy.File)) error {
			asked++
			fn(envoy.File{Field: envoy.FileRoots, Path: systemFiles[0]})
			fn(file)
			return nil
		},
		relay: func() xdsproxy.Status {
			return xdsproxy.Status{Types: []xdsproxy.TypeStatus{{TypeURL: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Accepted: accepted}}}
		},
	}
	loaded := func(at time.Time) { accepted, file.Loaded = accepted.Add(time.Second), at }
	check := func(step string, until time.Time, by string, questions int, updated map[string]time.Time) {
		t.Helper()
		list, err := f.credentials(time.Now(), updated)
		if err != nil {
			t.Fatal(err)
		}
		got := lastingOf(list, time.Now())
		if len(got) != 1 || got[0].What != "revocations "+path || !got[0].Until.Equal(until) || got[0].Unknown != until.IsZero() || !strings.HasPrefix(got[0].By, by) || asked != questions {
			t.Errorf("%s: got %+v after %d questions, want until %s by %q after %d", step, got, asked, until, by, questions)
		}
	}
	const program, reload = "the program that writes ", "a change of its listener"
	first, later := write(time.Hour), func() time.Time { return time.Now().Add(time.Minute) }
	loaded(later())
	check("read after it was written", first, program, 1, nil)
	check("nothing changed", first, program, 1, nil)
	loaded(time.Now().Add(-time.Hour))
	check("changed before the first question", time.Time{}, reload, 2, nil)
	check("the roots changed later", first, program, 2, map[string]time.Time{"roots": later()})
	_, changed := contentOf(path)
	loaded(changed)
	check("loaded", first, program, 3, nil)
	for now := changed; !now.After(changed); _, now = contentOf(path) { // times of files are coarse
		write(2 * time.Hour)
	}
	check("replaced", first, reload, 3, nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("removed", first, reload, 3, nil)
	second := write(2 * time.Hour)
	loaded(later())
	check("loaded again", second, program, 4, nil)
}
