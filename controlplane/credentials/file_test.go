// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is a log that is safe for concurrent use.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func secretYAML(name string, m made) string {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: ns}\ntype: kubernetes.io/tls\ndata:\n  tls.crt: %s\n  tls.key: %s\n",
		name, encode(m.cert), encode(m.key))
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(next, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// follow runs the source of a directory until the test ends.
func follow(t *testing.T, dir string) (*FileSource, *record) {
	t.Helper()
	log := &record{}
	s, err := NewFileSource(FileConfig{Dir: dir, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }() // always returns nil
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-s.Synced():
	case <-time.After(2 * time.Minute):
		t.Fatal("timeout waiting for the source to read the directory")
	}
	return s, log
}

func eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func uses(s Source, name string, m made) func() error {
	return func() error {
		p, err := KeyPairOf(s, Reference{SchemeKubernetes, "ns", name})
		if err == nil && !bytes.Equal(p.Key, m.key) {
			err = errors.New("the key pair differs")
		}
		return err
	}
}

func absent(s Source, name string) func() error {
	return func() error {
		if _, err := s.Get("ns", name); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("got error %w", err)
		}
		return nil
	}
}

func TestFileSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := certificate(t, time.Hour), certificate(t, time.Hour)
	plain := strings.ReplaceAll(string(a.cert)+"|"+string(a.key), "\n", "\n    ")
	cert, key, _ := strings.Cut(plain, "|")
	put(t, filepath.Join(dir, "a.yaml"), "# comment\n---\n"+secretYAML("one", a)+"---\nkind: Gateway\n---\n"+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: two, namespace: ns}\nstringData:\n  cert: |\n    "+cert+"\n  key: |\n    "+key+"\n", 0o600)
	put(t, filepath.Join(dir, "mesh.yaml"), "kind: Gateway\nmetadata: {name: x}\n", 0o644) // not a Secret, so its mode does not matter
	put(t, filepath.Join(dir, "note.txt"), secretYAML("text", a), 0o600)
	s, log := follow(t, dir)
	for _, name := range []string{"one", "two"} {
		if err := uses(s, name, a)(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := absent(s, "text")(); err != nil {
		t.Error(err)
	}
	put(t, filepath.Join(dir, "a.yaml"), secretYAML("one", b), 0o640)
	eventually(t, "changed", uses(s, "one", b))
	eventually(t, "a Secret that was removed from its file", absent(s, "two"))
	put(t, filepath.Join(dir, "b.yaml"), secretYAML("one", a)+"---\n"+secretYAML("three", a), 0o600)
	eventually(t, "a new file", uses(s, "three", a))
	if err := uses(s, "one", b)(); err != nil {
		t.Errorf("the first file does not take precedence: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second file is used", uses(s, "one", a))
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "sub", "c.yml"), secretYAML("four", b), 0o600)
	eventually(t, "a new directory", uses(s, "four", b))
	if log.String() != "" {
		t.Errorf("unexpected log:\n%s", log)
	}
}

func TestFileModes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := certificate(t, time.Hour), certificate(t, time.Hour)
	path := filepath.Join(dir, "a.yaml")
	put(t, path, secretYAML("one", a), 0o644)
	s, log := follow(t, dir)
	if err := absent(s, "one")(); err != nil || !strings.Contains(log.String(), "set it to 0600") {
		t.Fatalf("a file that others can read: error %v, log:\n%s", err, log)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "chmod", uses(s, "one", a))
	for _, mode := range []os.FileMode{0o604, 0o602, 0o620, 0o666} {
		put(t, path, secretYAML("one", b), mode)
		eventually(t, "the log", func() error {
			if !strings.Contains(log.String(), fmt.Sprintf("its mode is %#o", mode)) {
				return errors.New("the log does not contain the mode")
			}
			return nil
		})
		if err := uses(s, "one", a)(); err != nil {
			t.Errorf("with mode %o, the last good Secret is not in use: %v", mode, err)
		}
	}
	put(t, path, secretYAML("one", b), 0o400)
	eventually(t, "fixed", uses(s, "one", b))
}

func TestBrokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := certificate(t, time.Hour)
	path := filepath.Join(dir, "a.yaml")
	put(t, path, secretYAML("one", a), 0o600)
	s, log := follow(t, dir)
	put(t, path, "apiVersion: v1\nkind: Secret\nstringData: {key: hunter2\n", 0o600)
	eventually(t, "the log", func() error {
		if !strings.Contains(log.String(), "its previous credentials stay in force") {
			return errors.New("the log does not contain the problem")
		}
		return nil
	})
	if err := uses(s, "one", a)(); err != nil || strings.Contains(log.String(), "hunter2") {
		t.Errorf("an invalid file: error %v, log:\n%s", err, log)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	good := secretYAML("one", certificate(t, time.Hour))
	const head = "apiVersion: v1\nkind: Secret\n"
	for name, tc := range map[string]struct{ text, want string }{
		"good":        {good, ""},
		"behind":      {"kind: Gateway\n---\n" + good, ""},
		"other kind":  {"apiVersion: v1\nkind: SecretList\n", ""},
		"other group": {"apiVersion: other/v1\nkind: Secret\nstringData: [x]\n", ""},
		"base64":      {strings.Replace(good, "tls.key: ", "tls.key: hunter2!", 1), "document 1 is not the YAML of a Secret: data must be base64"},
		"a number":    {head + "metadata: {name: one}\nstringData: {key: 8675309}\n", ""},
		"a list":      {"---\n" + good + "---\n" + head + "stringData: [hunter2]\n", "document 2 is not the YAML of a Secret"},
		"syntax":      {head + "x:\n  stringData: {key: hunter2\n", "is not the YAML of an object (line"},
		"aliases":     {head + "a: &a " + strings.Repeat("hunter2", 10_000) + "\nb: [" + strings.Repeat("*a, ", 1000) + "]", "document 1 is refused: its aliases expand to too much, or it is not YAML (line 4 of it)"},
		"no name":     {head + "stringData: {key: hunter2}\n", "without a valid name"},
		"odd name":    {head + "metadata: {name: ../x}\n", "without a valid name"},
		"odd kind":    {"apiVersion: v1\nkind: [Secret, hunter2]\n", "is not the YAML of an object"},
	} {
		secrets, err := decode([]byte(tc.text), "default")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %d Secrets, error %v; want an error with %q", name, len(secrets), err, tc.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "8675309")) {
			t.Errorf("%s: the error quotes the Secret: %v", name, err)
		}
	}
}

// TestReplacedLink replaces files as Kubernetes replaces the content of a volume.
func TestReplacedLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	turn := func(n int, m made) {
		t.Helper()
		version := filepath.Join(dir, fmt.Sprint("..", n))
		if err := os.Mkdir(version, 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(version, "a.yaml"), secretYAML("one", m), 0o600)
		if err := os.Symlink(version, filepath.Join(dir, "..next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	a, b := certificate(t, time.Hour), certificate(t, time.Hour)
	turn(0, a)
	if err := os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	s, _ := follow(t, dir)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Get("ns", "one"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range 20 {
		next := a
		if n%2 == 0 {
			next = b
		}
		turn(n+1, next)
		eventually(t, "turned", uses(s, "one", next))
	}
	close(stop)
	wg.Wait()
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(secretYAML("one", certificate(f, time.Hour))))
	f.Add([]byte("---\nkind: Secret\napiVersion: v1\n--- x\n"))
	f.Add([]byte("kind: Secret\nx: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		secrets, err := decode(text, "default")
		if err != nil {
			return
		}
		for _, s := range secrets {
			if !isName(s.key.name) || !isName(s.key.namespace) {
				t.Fatalf("decode accepted a Secret with the name %+v", s.key)
			}
		}
	})
}
