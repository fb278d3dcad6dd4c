// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// InstallConfig says what is installed on a node. Directories are those of the container, in which
// directories of the node are mounted.
type InstallConfig struct {
	Cluster    Cluster
	Program    string // path of the program to install
	BinDir     string // directory of plugins
	NetDir     string // directory of network configurations
	HostNetDir string // the same directory on the node
	ConfName   string // file to change; empty means the first one, which the runtime uses
	Chained    bool   // false writes a configuration of its own, for Multus

	KubeconfigName    string // file in NetDir
	KubeconfigMode    fs.FileMode
	ExcludeNamespaces []string

	Namespace, DaemonSet string // the DaemonSet of the installer; empty names mean that it is never uninstalled
	Account              string // service account of the plugin, in Namespace
}

// standaloneName is the file of a configuration that is not chained, as istio-cni's.
const standaloneName = "YYY-istio-cni.conf"

// installer keeps the plugin installed.
type installer struct {
	config  InstallConfig
	log     *slog.Logger
	metrics *metrics
	entry   json.RawMessage
	deleted atomic.Bool // the API server has reported that the DaemonSet is deleted

	// Run owns them.
	renew     time.Time   // when the token is renewed
	tokenErr  error       // why the last token could not be written
	installed fs.FileInfo // of the program, as it was verified
	problem   string      // the last one that was logged
}

func newInstaller(config InstallConfig, log *slog.Logger, m *metrics) (*installer, error) {
	in := &installer{config: config, log: log, metrics: m}
	fields := map[string]any{
		"name": "istio-cni", "type": PluginName, "exclude_namespaces": config.ExcludeNamespaces,
		"kubernetes": map[string]any{"kubeconfig": filepath.Join(config.HostNetDir, config.KubeconfigName)},
	}
	if !config.Chained { // a list has it
		fields["cniVersion"] = "0.3.1"
	}
	var err error
	in.entry, err = json.Marshal(fields)
	return in, err
}

const (
	lookAgain  = 10 * time.Second // although no file changed
	retryAfter = time.Second
)

// run installs the plugin and restores what others change, until ctx is done. If the DaemonSet is
// gone by then, it removes the plugin. Otherwise the plugin stays, so that no pod starts without it
// while the pod of this process is replaced.
func (in *installer) run(ctx context.Context) error {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching files: %w", err)
	}
	defer func() { _ = watch.Close() }() // nothing is lost
	for _, dir := range []string{in.config.BinDir, in.config.NetDir} {
		if err := watch.Add(dir); err != nil {
			return fmt.Errorf("watching %s: %w", dir, err)
		}
	}
	if in.config.DaemonSet != "" {
		var set sync.WaitGroup
		defer set.Wait()
		watching, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also while end asks
		defer cancel()
		set.Go(func() { in.watchSet(watching) })
	}
	for {
		pause := lookAgain
		if err := in.install(ctx); err != nil && ctx.Err() == nil {
			pause = retryAfter
			in.report(err)
		}
		select {
		case <-ctx.Done():
			return in.end(ctx)
		case <-watch.Events:
		case err := <-watch.Errors:
			in.log.Warn("changes of files may be noticed late", "err", err)
		case <-time.After(pause):
		}
	}
}

// report logs an error, unless it is the last one again.
func (in *installer) report(err error) {
	in.metrics.setReady(false)
	in.metrics.installs.WithLabelValues("FAILURE").Inc()
	if text := err.Error(); text != in.problem {
		in.problem = text
		in.log.Error("the plugin is not installed completely", "err", err)
	}
}

// install makes the node as it should be.
func (in *installer) install(ctx context.Context) error {
	program, err := in.installProgram()
	if err != nil {
		return err
	}
	// A changed configuration is repaired at once; only the first time it waits for the token.
	before, err := in.configure()
	if err != nil {
		return err
	}
	if err := in.writeKubeconfig(ctx); err != nil {
		return err
	}
	after, err := in.configure()
	if err != nil {
		return err
	}
	if program || before || after || !in.metrics.isReady.Load() {
		in.metrics.installs.WithLabelValues("SUCCESS").Inc()
		in.log.Info("the plugin is installed: connections of pods that start from now on are redirected to their proxies", "path", in.config.HostNetDir)
	}
	in.problem = ""
	in.metrics.setReady(true)
	return nil
}

// installProgram copies the program unless it is there, and reports whether it was not.
func (in *installer) installProgram() (changed bool, err error) {
	const mode = 0o755
	path := filepath.Join(in.config.BinDir, PluginName)
	for {
		now, err := os.Lstat(path)
		if err == nil && in.installed != nil && os.SameFile(now, in.installed) && now.ModTime().Equal(in.installed.ModTime()) &&
			now.Size() == in.installed.Size() && now.Mode() == mode {
			return changed, nil
		}
		want, readErr := os.ReadFile(in.config.Program)
		if readErr != nil {
			return changed, readErr
		}
		if err == nil && now.Mode() == mode {
			if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
				in.installed = now
				return changed, nil
			}
		}
		if changed {
			return true, fmt.Errorf("%s: another program also changes it", path)
		}
		if err := durable.Replace(path, want, mode); err != nil {
			return false, err
		}
		changed = true
	}
}

func (in *installer) kubeconfig() string {
	return filepath.Join(in.config.NetDir, in.config.KubeconfigName)
}

// writeKubeconfig writes the kubeconfig of the plugin, with a token of its own, if there is none or
// its token should be renewed.
func (in *installer) writeKubeconfig(ctx context.Context) error {
	info, err := os.Lstat(in.kubeconfig())
	if err == nil && info.Mode() == in.config.KubeconfigMode && time.Now().Before(in.renew) {
		return in.tokenErr
	}
	in.renew = time.Now().Add(lookAgain) // after an error
	in.tokenErr = in.renewKubeconfig(ctx)
	return in.tokenErr
}

func (in *installer) renewKubeconfig(ctx context.Context) error {
	api, err := in.config.Cluster.connect()
	if err != nil {
		return err
	}
	defer api.close()
	token, renew, err := api.pluginToken(ctx, in.config.Namespace, in.config.Account)
	if err != nil {
		return err
	}
	roots, err := os.ReadFile(in.config.Cluster.RootsFile)
	if err != nil {
		return err
	}
	text, err := newKubeconfig(in.config.Cluster.URL, roots, token)
	if err != nil {
		return err
	}
	if err := durable.Replace(in.kubeconfig(), text, in.config.KubeconfigMode); err != nil {
		return err
	}
	in.renew = renew
	return nil
}

// configure adds the plugin to the configuration that the runtime uses, and reports whether it was
// not there. It does nothing before there is a kubeconfig: no pod of the node would start.
func (in *installer) configure() (changed bool, err error) {
	if _, err := os.Stat(in.kubeconfig()); err != nil {
		return false, nil
	}
	if !in.config.Chained {
		name := in.config.ConfName
		if name == "" {
			name = standaloneName
		}
		path := filepath.Join(in.config.NetDir, name)
		if text, err := os.ReadFile(path); err == nil && sameJSON(text, in.entry) {
			return false, nil
		}
		return true, durable.Replace(path, append(slices.Clone(in.entry), '\n'), confMode)
	}
	name, text, err := in.target()
	if err != nil {
		return false, err
	}
	insert := func(text []byte) ([]byte, error) { return insertPlugin(text, in.entry) }
	path, ext := filepath.Join(in.config.NetDir, name), filepath.Ext(name)
	if ext == listExt {
		return edit(path, text, insert)
	}
	// Only a file with this name may hold a list. It is used once the other one is gone.
	list, err := insert(text)
	if err != nil {
		return false, err
	}
	err = durable.Replace(strings.TrimSuffix(path, ext)+listExt, list, confMode)
	if err == nil {
		err = os.Remove(path)
	}
	return true, err
}

const (
	confMode = 0o644
	listExt  = ".conflist"
)

// isConf reports whether the runtime reads a file with this name.
func isConf(name string) bool {
	return slices.Contains([]string{".conf", listExt, ".json"}, filepath.Ext(name))
}

// target returns the configuration to change: the one that is set, or the first valid one.
func (in *installer) target() (name string, text []byte, err error) {
	entries, err := os.ReadDir(in.config.NetDir) // sorted by name, as runtimes do
	if err != nil {
		return "", nil, err
	}
	stem := strings.TrimSuffix(in.config.ConfName, filepath.Ext(in.config.ConfName))
	var broken error
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !isConf(name) || in.config.ConfName != "" && strings.TrimSuffix(name, filepath.Ext(name)) != stem {
			continue
		}
		text, err := os.ReadFile(filepath.Join(in.config.NetDir, name))
		if err != nil {
			// The runtime, outside of the container, may read it, and nothing of the next one.
			return "", nil, fmt.Errorf("%w; if it is a link to a file outside of %s, replace it by the file", err, in.config.HostNetDir)
		}
		if _, err = parseNetwork(text); err == nil {
			return name, text, nil
		}
		broken = errors.Join(broken, fmt.Errorf("%s: %w", name, err))
	}
	wanted := "network configuration"
	if in.config.ConfName != "" {
		wanted = in.config.ConfName
	}
	return "", nil, errors.Join(fmt.Errorf("%s has no %s yet: the network plugin of the cluster writes it", in.config.HostNetDir, wanted), broken)
}

// maxEdits bounds how often another program can change a file during an edit.
const maxEdits = 100

// edit replaces a file by its changed content, and reports whether it did. What another program
// writes in the meantime is changed in the same way.
func edit(path string, text []byte, change func([]byte) ([]byte, error)) (changed bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	expected := text
	for range maxEdits {
		out, err := change(text)
		if err != nil {
			return changed, err
		}
		if !changed && bytes.Equal(out, text) {
			return false, nil
		}
		displaced, err := exchange(path, out, expected, info.Mode().Perm())
		if err != nil {
			return true, fmt.Errorf("write %s: %w", path, err)
		}
		if changed = true; bytes.Equal(displaced, expected) {
			return true, nil
		}
		text, expected = displaced, out
	}
	return changed, fmt.Errorf("write %s: another program keeps overwriting it", path)
}
