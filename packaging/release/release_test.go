// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	spdx "github.com/spdx/tools-golang/json"
)

var built = flag.String("programs", "../../bin", "directory with the programs for each architecture")

// world is a repository with two commits since its tag v0.1.0, and what others built. Small programs
// take the places of large ones: how long a release takes depends on their sizes.
type world struct {
	t         *testing.T
	dir       string
	arguments []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	for _, name := range append(programs, "envoy") {
		small := filepath.Join(*built, "linux-"+runtime.GOARCH, "outrigger-cni")
		if _, err := os.Stat(small); err != nil {
			t.Fatalf("%v: run make test-images, which builds the programs", err)
		}
		to := w.path("bin", "linux-"+runtime.GOARCH, name)
		w.must(os.MkdirAll(filepath.Dir(to), 0o755), copyFile(to, small))
	}
	w.must(os.MkdirAll(w.path("charts"), 0o755), os.CopyFS(w.path("charts", "outrigger"), os.DirFS("../../charts/outrigger")),
		os.MkdirAll(w.path("packaging"), 0o755), os.CopyFS(w.path("packaging", "prometheus"), os.DirFS("../prometheus")),
		copyFile(w.path("LICENSE"), "../../LICENSE"), copyFile(w.path("THIRD_PARTY_NOTICES"), "../../THIRD_PARTY_NOTICES"),
		copyFile(w.path("README.md"), "../../README.md"), os.WriteFile(w.path(".gitignore"), []byte("/bin/\n"), 0o600))
	w.git("init", "-q")
	w.git("add", ".")
	w.git("commit", "-q", "-m", "agent: begin")
	w.git("tag", "v0.1.0")
	w.git("commit", "-q", "--allow-empty", "-m", "controlplane/push, agent: send less")
	w.git("commit", "-q", "--allow-empty", "-m", "sds: answer sooner")
	w.must(os.MkdirAll(w.path("bin", "images"), 0o755), os.Mkdir(w.path("bin", "packages"), 0o755))
	for _, name := range []string{"images/proxy-" + runtime.GOARCH + ".tar", "images/proxy-" + runtime.GOARCH + ".spdx.json", "packages/outrigger_0.2.0.deb", "packages/outrigger-0.2.0.rpm"} {
		w.must(os.WriteFile(w.path("bin", name), []byte(name), 0o600))
	}
	w.arguments = []string{
		"--repository", w.dir, "--programs", w.path("bin"), "--images", w.path("bin", "images"), "--packages", w.path("bin", "packages"),
		"--version", "v0.2.0-rc.1", "--envoy-version", "1.39.3", "--created", "1700000000", "--arch", runtime.GOARCH,
	}
	return w
}

func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

func (w *world) must(errs ...error) {
	w.t.Helper()
	for _, err := range errs {
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) git(arguments ...string) {
	w.t.Helper()
	c := exec.CommandContext(w.t.Context(), "git", append([]string{"-C", w.dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, arguments...)...)
	if out, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("git %v: %v: %s", arguments, err, out)
	}
}

// release makes a release and returns its directory.
func (w *world) release(more ...string) string {
	w.t.Helper()
	out := filepath.Join(w.t.TempDir(), "release")
	var table bytes.Buffer
	w.must(run(w.t.Context(), slices.Concat(w.arguments, []string{"--out", out}, more), &table))
	w.t.Logf("\n%s", &table)
	return out
}

// contents returns the files of an archive by name.
func (w *world) contents(path string) map[string][]byte {
	w.t.Helper()
	f, err := os.Open(path)
	w.must(err)
	defer func() { _ = f.Close() }() // it is only read
	zip, err := gzip.NewReader(f)
	w.must(err)
	files, r := map[string][]byte{}, tar.NewReader(zip)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		w.must(err)
		files[h.Name], err = io.ReadAll(r)
		w.must(err)
	}
}

// key writes a private key to a file.
func (w *world) key() string {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	w.must(err)
	path := filepath.Join(w.t.TempDir(), "key.pem")
	w.must(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return path
}

// TestSignatures signs the same bytes twice, with keys of both kinds.
func TestSignatures(t *testing.T) {
	t.Parallel()
	w := &world{t: t}
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	w.must(err)
	pkcs1 := filepath.Join(t.TempDir(), "rsa.pem")
	w.must(os.WriteFile(pkcs1, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(large)}), 0o600))
	for _, path := range []string{w.key(), pkcs1} {
		key, err := readKey(path)
		w.must(err)
		first, err := key.Sign(t.Context(), []byte("data"))
		w.must(err)
		second, err := key.Sign(t.Context(), []byte("data"))
		w.must(err)
		if !bytes.Equal(first, second) {
			t.Errorf("%s: two signatures of the same bytes differ", path)
		}
	}
}

// TestRelease makes a release twice, the second one signed. Programs that others wrote read its files.
func TestRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.release(), w.release("--key", w.key())
	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	w.must(err)
	again, err := os.ReadFile(filepath.Join(second, "SHA256SUMS"))
	w.must(err)
	if !bytes.Equal(sums, again) || bytes.Count(sums, []byte("\n")) != 9 {
		t.Errorf("two runs have the checksums\n%s\nand\n%s", sums, again)
	}
	base := "outrigger-0.2.0-rc.1"
	for dir, names := range map[string][]string{first: {base + ".intoto.json"}, second: {base + ".intoto.jsonl", "SHA256SUMS.sig", "outrigger-release.pem"}} {
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = second
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v: %s", err, out)
	}
	t.Run("openssl", func(t *testing.T) {
		openssl, err := exec.LookPath("openssl")
		if err != nil {
			t.Skip("openssl is not installed")
		}
		c := exec.CommandContext(t.Context(), openssl, "dgst", "-sha256", "-verify", "outrigger-release.pem", "-signature", "SHA256SUMS.sig", "SHA256SUMS")
		c.Dir = second
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("openssl: %v: %s", err, out)
		}
	})
	w.checkProvenance(first, second)
	w.checkChanges(first)

	archived := w.contents(filepath.Join(first, base+"-linux-"+runtime.GOARCH+".tar.gz"))
	top := base + "-linux-" + runtime.GOARCH + "/"
	names := slices.Sorted(maps.Keys(archived))
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], top)
	}
	const want = "ENVOY LICENSE README.md THIRD_PARTY_NOTICES envoy outrigger outrigger-agent outrigger-cni outrigger-control"
	if got := strings.Join(slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, ".spdx.json") }), " "); got != want {
		t.Errorf("the archive has %s, want %s", got, want)
	}
	tool := filepath.Join(t.TempDir(), "outrigger-cni")
	w.must(os.WriteFile(tool, archived[top+"outrigger-cni"], 0o700))
	if out, err := exec.CommandContext(t.Context(), tool, "version").CombinedOutput(); err != nil {
		t.Errorf("outrigger-cni version: %v: %s", err, out)
	}
	list, err := spdx.Read(bytes.NewReader(archived[top+base+"-linux-"+runtime.GOARCH+".spdx.json"]))
	if err != nil || len(list.Packages) < 20 {
		t.Errorf("the list of parts: %v", err)
	}
	chart := w.contents(filepath.Join(first, "outrigger-chart-0.2.0-rc.1.tgz"))
	if text := string(chart["outrigger/Chart.yaml"]); !strings.Contains(text, "\nversion: 0.2.0-rc.1\nappVersion: 0.2.0-rc.1\n") || len(chart["outrigger/values.yaml"]) == 0 {
		t.Errorf("the chart has\n%s", text)
	}
}

// checkChanges checks the list of changes since the last tag.
func (w *world) checkChanges(out string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(out, "CHANGES.md"))
	w.must(err)
	short := func(revision string) string {
		hash, err := exec.CommandContext(w.t.Context(), "git", "-C", w.dir, "rev-parse", "--short", revision).Output()
		w.must(err)
		return strings.TrimSpace(string(hash))
	}
	want := "# Outrigger v0.2.0-rc.1\n\nChanges since v0.1.0.\n\n## Control plane\n\n- controlplane/push, agent: send less (" + short("HEAD~1") +
		")\n\n## Agent\n\n- sds: answer sooner (" + short("HEAD") + ")\n"
	if string(text) != want {
		w.t.Errorf("the changes are\n%s\nwant\n%s", text, want)
	}
}

// checkProvenance verifies the envelope of a signed release with its public key, and compares its
// statement with that of an unsigned one.
func (w *world) checkProvenance(unsigned, signed string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(unsigned, "outrigger-0.2.0-rc.1.intoto.json"))
	w.must(err)
	line, err := os.ReadFile(filepath.Join(signed, "outrigger-0.2.0-rc.1.intoto.jsonl"))
	w.must(err)
	var envelope dsse.Envelope
	w.must(json.Unmarshal(line, &envelope))
	public, err := os.ReadFile(filepath.Join(signed, "outrigger-release.pem"))
	w.must(err)
	block, _ := pem.Decode(public)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	w.must(err)
	payload, err := envelope.DecodeB64Payload()
	w.must(err)
	if !bytes.Equal(payload, text) || envelope.PayloadType != "application/vnd.in-toto+json" {
		w.t.Errorf("the envelope has %s %s\nwant %s", envelope.PayloadType, payload, text)
	}
	for _, changed := range []bool{false, true} {
		body := slices.Clone(payload)
		if changed {
			body[0] = ' '
		}
		signature, err := dsse.NewEnvelopeVerifier(publicKey{key.(*ecdsa.PublicKey), fmt.Sprintf("%x", sha256.Sum256(block.Bytes))})
		w.must(err)
		e := envelope
		e.Payload = encode(body)
		if _, err := signature.Verify(w.t.Context(), &e); (err != nil) != changed {
			w.t.Errorf("changed is %t: the envelope is verified with the error %v", changed, err)
		}
	}
	var s statement
	w.must(json.Unmarshal(text, &s))
	if len(s.Subject) != 9 || len(s.Predicate.Definition.Dependencies[0].Digest["gitCommit"]) != 40 {
		w.t.Errorf("the provenance is %s", text)
	}
}

// TestReleaseErrors checks that what cannot be released is refused with the cure, and nothing written.
func TestReleaseErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := "c2VjcmV0"
	broken := filepath.Join(t.TempDir(), "broken.pem")
	w.must(os.WriteFile(broken, []byte("-----BEGIN PRIVATE KEY-----\n"+secret+"\n-----END PRIVATE KEY-----\n"), 0o600))
	for want, arguments := range map[string][]string{
		"tag the commit":          {"--version", "v0.1.0-3-gabcdef0"},
		"no private key of ECDSA": {"--key", broken},
		"is no PEM file":          {"--key", w.path("LICENSE")},
		"run make images":         {"--images", t.TempDir()},
		"run make packages":       {"--packages", t.TempDir()},
		"no such file":            {"--programs", t.TempDir()},
	} {
		err := run(t.Context(), slices.Concat(w.arguments, []string{"--out", filepath.Join(t.TempDir(), "out")}, arguments), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: error %v, want %s", arguments, err, want)
		}
	}
	w.must(os.WriteFile(w.path("README.md"), []byte("changed"), 0o600))
	out := filepath.Join(t.TempDir(), "out")
	err := run(t.Context(), slices.Concat(w.arguments, []string{"--out", out}), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "commit or stash them first:\nM README.md") {
		t.Errorf("with a change: %v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("files were written")
	}
}

// publicKey verifies envelopes.
type publicKey struct {
	key *ecdsa.PublicKey
	id  string
}

func (p publicKey) Verify(_ context.Context, data, signature []byte) error {
	sum := sha256.Sum256(data)
	if !ecdsa.VerifyASN1(p.key, sum[:], signature) {
		return errors.New("wrong signature")
	}
	return nil
}

func (p publicKey) KeyID() (string, error)   { return p.id, nil }
func (p publicKey) Public() crypto.PublicKey { return p.key }

func encode(body []byte) string { return base64.StdEncoding.EncodeToString(body) }
