// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	reportEvery = 10 * time.Second
	pollLock    = 200 * time.Millisecond
	forgetAfter = 14 * 24 * time.Hour // age at which an unused program is removed
)

// Parts contains the paths and versions of the programs.
type Parts struct {
	APIServer        string // path of kube-apiserver
	APIServerVersion string // such as v1.36.3
	Etcd             string // path of etcd
	EtcdVersion      string // such as v3.7.3
}

// part describes a program and its build.
type part struct {
	name    string // of the program
	folder  string // with its module
	module  string // its version is that of the program
	target  string // package that go build builds
	gcflags string
	ldflags func(version string) string
}

const kubernetes = "k8s.io/kubernetes"

// quick contains flags that save a third of the compile time of packages that only the programs
// have.
const quick = kubernetes + "/...=-l -dwarf=false"

var (
	apiServer = part{"kube-apiserver", "kubernetes", kubernetes, kubernetes + "/cmd/kube-apiserver", quick, kubernetesVersion}
	etcd      = part{"etcd", "etcd", "go.etcd.io/etcd/server/v3", ".", "", func(string) string { return "" }}
	node      = part{"kube-node", "kubernetes", kubernetes, ".", quick, kubernetesVersion}
)

// kubernetesVersion returns the flags of the linker that set the version of Kubernetes.
func kubernetesVersion(version string) string {
	number := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const x = " -X k8s.io/component-base/version."
	return x + "gitVersion=" + version + x + "gitMajor=" + number[0] + x + "gitMinor=" + number[1] + x + "gitTreeState=clean"
}

// Get builds the programs that are not in the cache, writes progress lines, and returns their
// paths. It searches for the modules that pin them from the working directory upwards.
func Get(ctx context.Context, progress io.Writer) (Parts, error) {
	b, err := newBuilder(progress)
	if err != nil {
		return Parts{}, err
	}
	var paths, versions []string
	for _, p := range []part{apiServer, etcd} {
		path, version, err := b.get(ctx, p)
		if err != nil {
			return Parts{}, fmt.Errorf("build %s: %w", p.name, err)
		}
		paths, versions = append(paths, path), append(versions, version)
	}
	return Parts{APIServer: paths[0], APIServerVersion: versions[0], Etcd: paths[1], EtcdVersion: versions[1]}, nil
}

// GetNode is Get for kube-node, which is kubelet, kube-proxy, kube-controller-manager and
// kube-scheduler in one program. It returns the program's path.
func GetNode(ctx context.Context, progress io.Writer) (path string, err error) {
	b, err := newBuilder(progress)
	if err != nil {
		return "", err
	}
	if path, _, err = b.get(ctx, node); err != nil {
		return "", fmt.Errorf("build kube-node: %w", err)
	}
	return path, nil
}

func newBuilder(progress io.Writer) (builder, error) {
	source, err := sourceDir()
	if err != nil {
		return builder{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return builder{}, fmt.Errorf("find a directory to build to: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return builder{source: source, cache: filepath.Join(cache, "outrigger", "kube"), progress: progress}, nil
}

// sourceDir finds the directory of this package. Tests run in the directory of their own package,
// which is in the same module.
func sourceDir() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the modules of the programs: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		for _, candidate := range []string{filepath.Join(dir, "parts"), filepath.Join(dir, "kube", "parts"), filepath.Join(dir, "e2e", "kube", "parts")} {
			if _, err := os.Stat(filepath.Join(candidate, "kubernetes", "go.mod")); err == nil {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the modules of the programs: no folder above %s has e2e/kube/parts: run it in the repository", start)
		}
	}
}

type builder struct {
	source, cache string
	progress      io.Writer
}

func (b builder) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "kube: "+format+"\n", args...) // an unread line does no harm
}

// get returns the path of a program. It builds the program if the cache has none for this module,
// version of Go and flags.
func (b builder) get(ctx context.Context, p part) (path, version string, err error) {
	pins, err := b.pins(p)
	if err != nil {
		return "", "", err
	}
	version = moduleVersion(pins, p.module)
	if version == "" {
		return "", "", fmt.Errorf("%s/go.mod requires no version of %s", p.folder, p.module)
	}
	// The flags and most versions are those of the tests, so that the build cache is shared.
	args := []string{"build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace", "-gcflags=" + p.gcflags, "-ldflags=-s -w" + p.ldflags(version)}
	hash := sha256.Sum256(fmt.Appendf(pins, "\n%s %s/%s\n%q", runtime.Version(), runtime.GOOS, runtime.GOARCH, args))
	dir := filepath.Join(b.cache, p.name+"-"+version+"-"+hex.EncodeToString(hash[:8]))
	path = filepath.Join(dir, p.name)
	if b.has(dir, path) {
		return path, version, nil
	}
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return "", "", err
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if b.has(dir, path) { // built while this process waited
		return path, version, nil
	}
	b.forget(p.name, dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", err
	}
	b.say("building %s %s, once: minutes, or seconds if Go remembers it", p.name, version)
	began := time.Now()
	temporary := path + ".new"
	if err := b.run(ctx, p, append(args, "-v", "-o", temporary, p.target)); err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	if err := os.Rename(temporary, path); err != nil {
		return "", "", err
	}
	b.say("%s is built, in %s: %s", p.name, time.Since(began).Round(time.Second), path)
	return path, version, nil
}

// pins returns all inputs of the build except Go and the flags.
func (b builder) pins(p part) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(b.source, p.folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, file := range append(files, filepath.Join(b.source, p.folder, "go.mod"), filepath.Join(b.source, p.folder, "go.sum")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, text...)
	}
	return all, nil
}

func moduleVersion(goMod []byte, module string) string {
	m := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(goMod)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// has reports whether a program exists, and records its use.
func (b builder) has(dir, path string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // otherwise it is removed too early, and built again
	return true
}

// lock waits until no other process builds.
func (b builder) lock(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(b.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for waits := false; ; waits = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
		}
		if !waits {
			b.say("another process builds: waiting for it")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that builds: %w", ctx.Err()), file.Close())
		case <-time.After(pollLock):
		}
	}
}

// forget removes builds of a part that were not used for a long time.
func (b builder) forget(name, keep string) {
	old, _ := filepath.Glob(filepath.Join(b.cache, name+"-v*")) // the pattern is valid
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && dir != keep && time.Since(info.ModTime()) > forgetAfter {
			_ = os.RemoveAll(dir) // remaining files only take space
		}
	}
}

// run runs the go command in the module of a part. With -v the command prints each package that it
// compiles, which is the progress.
func (b builder) run(ctx context.Context, p part, args []string) error {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "GOFLAGS=") || strings.HasPrefix(e, "GOWORK=") || strings.HasPrefix(e, "PWD=")
	})
	env = append(env, "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	list := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-deps", p.target)
	list.Dir, list.Env = filepath.Join(b.source, p.folder), env
	var stderr bytes.Buffer
	list.Stderr = &stderr
	b.say("%s: downloading modules", p.name)
	packages, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w: %s", err, lastLines(stderr.Bytes()))
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = list.Dir, append(env, "GOGC=400") // saves a sixth of the compiler's time
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out := &counter{}
	cmd.Stdout, cmd.Stderr = out, out
	done := make(chan struct{})
	go b.report(p.name, out, bytes.Count(packages, []byte("\n")), done)
	err = cmd.Run()
	close(done)
	if err != nil {
		return fmt.Errorf("go build: %w: %s", err, lastLines(out.text.Bytes()))
	}
	return nil
}

func (b builder) report(name string, out *counter, total int, done <-chan struct{}) {
	began := time.Now()
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			b.say("%s: %d of %d packages or fewer, %s", name, out.lines.Load(), total, time.Since(began).Round(time.Second))
		}
	}
}

// counter stores the output of the go command, and counts its lines.
type counter struct {
	text  bytes.Buffer
	lines atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.lines.Add(int64(bytes.Count(p, []byte("\n"))))
	return c.text.Write(p)
}

func lastLines(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
