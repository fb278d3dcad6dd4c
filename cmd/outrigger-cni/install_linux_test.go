// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInstall installs the plugin, lets other programs change every file, restarts, and uninstalls.
func TestInstall(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	const before = `{"cniVersion": "1.0.0", "name": "pods", "big": 12345678901234567890, "plugins": [{"type": "lab-network", "html": "<&>", "n": 1.0}]}`
	l.write("net.d/20-later.conflist", fmt.Sprintf(podNetwork, "0.4.0"))
	d := l.start()
	l.eventually("the first configuration is used", l.chained)
	l.write("net.d/05-broken.conflist", `{"name": `)
	l.write("net.d/10-pods.conflist", before)
	l.eventually("a new first configuration is used", l.chained)
	l.eventually("ready is logged", func() bool { return strings.Contains(d.log.String(), "the plugin is installed") })
	config := l.read("net.d/10-pods.conflist")
	for _, kept := range []string{"12345678901234567890", `"html": "<&>"`, `"n": 1.0`, `"exclude_namespaces": [`} {
		if !strings.Contains(config, kept) {
			t.Errorf("the configuration no longer contains %s: %s", kept, config)
		}
	}
	if info, err := os.Stat(l.path("net.d/ZZZ-outrigger-cni-kubeconfig")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the kubeconfig: got mode %v, error %v; want 0600", info.Mode(), err)
	}
	if strings.Contains(l.read("net.d/ZZZ-outrigger-cni-kubeconfig"), token) {
		t.Error("the kubeconfig contains the token of the daemon")
	}

	for _, file := range []string{"net.d/10-pods.conflist", "net.d/ZZZ-outrigger-cni-kubeconfig", "bin/outrigger-cni"} {
		want := l.read(file)
		for what, damage := range map[string]func() error{
			"removed":  func() error { return os.Remove(l.path(file)) },
			"replaced": func() error { l.write(file, before); return nil },
			"changed":  func() error { return os.Chmod(l.path(file), 0o666) },
		} {
			if isConf := strings.HasSuffix(file, "conflist"); isConf && what != "replaced" || !isConf && what == "replaced" && strings.Contains(file, "kubeconfig") {
				continue // the cluster's network plugin writes the first; a foreign kubeconfig is replaced with the next token
			}
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			l.eventually(file+" was "+what+" and is restored", func() bool {
				text, err := os.ReadFile(l.path(file))
				info, statErr := os.Stat(l.path(file))
				return err == nil && statErr == nil && string(text) == want && info.Mode() != 0o666
			})
		}
	}

	for _, signal := range []os.Signal{syscall.SIGTERM, os.Kill} {
		l.stop(d, signal)
		if !l.chained() {
			t.Errorf("%v: the plugin was removed from the configuration although a new pod of the DaemonSet will start", signal)
		}
		d = l.start()
		l.eventually("it is installed again", func() bool { return strings.Contains(d.log.String(), "the plugin is installed") })
	}
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	l.stop(d, syscall.SIGTERM)
	left, err := filepath.Glob(l.path("*/*outrigger*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files remain after the DaemonSet was deleted: %v (error %v)", left, err)
	}
	var got, want any
	if err := json.Unmarshal([]byte(l.read("net.d/10-pods.conflist")), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(before), &want); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("configuration: got %v, want %v (error %v)", got, want, err)
	}
}

func (l *lab) read(name string) string {
	l.t.Helper()
	text, err := os.ReadFile(l.path(name))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// TestInstallNames uses the settings of istio-cni that set file names.
func TestInstallNames(t *testing.T) {
	t.Parallel()
	list, single := fmt.Sprintf(podNetwork, "1.0.0"), `{"cniVersion": "0.4.0", "name": "pods", "type": "lab-network"}`
	for name, c := range map[string]struct {
		environ []string
		files   map[string]string
		want    []string // files that contain the plugin
		absent  string
	}{
		"one plugin":                     {nil, map[string]string{"10-a.conf": single}, []string{"10-a.conflist"}, "10-a.conf"},
		"single plugin next to its list": {nil, map[string]string{"10-a.conf": single, "10-a.conflist": list}, []string{"10-a.conflist"}, "10-a.conf"},
		"several files":                  {nil, map[string]string{"10-a.conflist": list, "20-b.conflist": list}, []string{"10-a.conflist"}, ""},
		"a name":                         {[]string{"CNI_CONF_NAME=20-b.conflist"}, map[string]string{"10-a.conflist": list, "20-b.conflist": list}, []string{"20-b.conflist"}, ""},
		"a name with another ending":     {[]string{"CNI_CONF_NAME=20-b.conf"}, map[string]string{"20-b.conflist": list}, []string{"20-b.conflist"}, ""},
		"Multus":                         {[]string{"CHAINED_CNI_PLUGIN=false"}, map[string]string{"10-a.conflist": list}, []string{"YYY-istio-cni.conf"}, ""},
		"Multus with a name":             {[]string{"CHAINED_CNI_PLUGIN=false", "CNI_CONF_NAME=x.conf"}, nil, []string{"x.conf"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			for file, text := range c.files {
				l.write("net.d/"+file, text)
			}
			d := l.start(c.environ...)
			l.eventually("it is installed", func() bool { return strings.Contains(d.log.String(), "the plugin is installed") })
			var have []string
			entries, err := os.ReadDir(l.path("net.d"))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if strings.Contains(l.read("net.d/"+e.Name()), `"outrigger-cni"`) && !strings.HasPrefix(e.Name(), "ZZZ") {
					have = append(have, e.Name())
				}
				if e.Name() == c.absent {
					t.Errorf("%s was not removed", c.absent)
				}
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("files with the plugin: got %v, want %v", have, c.want)
			}
			if c.absent != "" && !l.chained() {
				t.Error("the runtime does not use the plugin")
			}
		})
	}
}

// TestInstallUnreadable checks that if only the runtime can read the first configuration, the
// plugin is not added to another one, which the runtime does not use.
func TestInstallUnreadable(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/20-later.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	if err := os.Symlink(l.path("nowhere.conflist"), l.path("net.d/10-link.conflist")); err != nil {
		t.Fatal(err)
	}
	d := l.start()
	l.eventually("the log names the file", func() bool {
		return strings.Contains(d.log.String(), "10-link.conflist") && strings.Contains(d.log.String(), "replace it by the file")
	})
	if strings.Contains(l.read("net.d/20-later.conflist"), "outrigger-cni") || strings.Contains(d.log.String(), "the plugin is installed") {
		t.Errorf("the plugin was added to a configuration that the runtime does not use:\n%s", d.log)
	}
	if err := os.Remove(l.path("net.d/10-link.conflist")); err != nil {
		t.Fatal(err)
	}
	l.eventually("the plugin is installed without the link", l.chained)
}

// TestConcurrentWriter lets the network plugin of the cluster rewrite its configuration repeatedly.
// No version may be lost, and in the end the plugin must be installed.
func TestConcurrentWriter(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	version := func(n int) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "lab-network", "n": %d}]}`, n)
	}
	l.write("net.d/10-pods.conflist", version(0))
	d := l.installed()
	const writes = 300
	for n := 1; n <= writes; n++ {
		l.write("net.d/10-pods.conflist", version(n))
		time.Sleep(rand.N(2 * time.Millisecond)) // at a different moment of the installer each time
	}
	l.eventually("the last configuration has the plugin", func() bool {
		return strings.Contains(l.read("net.d/10-pods.conflist"), fmt.Sprintf(`"n": %d`, writes)) && l.chained()
	})
	l.stop(d, syscall.SIGTERM)
	if entries, err := filepath.Glob(l.path("net.d/*.tmp.*")); err != nil || len(entries) > 0 {
		t.Errorf("temporary files remain: %v (error %v)", entries, err)
	}
}

// TestUninstallUnknown checks that the plugin stays installed if the installer is stopped while the
// API server cannot tell whether the DaemonSet is deleted.
func TestUninstallUnknown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	d := l.installed()
	l.shut()
	l.stop(d, syscall.SIGTERM)
	if !l.chained() || !strings.Contains(d.log.String(), "whether it was uninstalled is unknown") {
		t.Errorf("the plugin was removed without an API server:\n%s", d.log)
	}
}

// TestUninstallRefused stops the installer while the API server rejects all tokens. That does not
// prove that the DaemonSet is deleted, unless the API server reported the deletion before.
func TestUninstallRefused(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"replaced": false, "uninstalled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
			d := l.installed()
			l.eventually("the installer watches its DaemonSet", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.watched
			})
			l.mu.Lock()
			l.refused = []string{token, pluginToken}
			l.mu.Unlock()
			if deleted {
				close(l.removed)
			}
			l.stop(d, syscall.SIGTERM)
			if l.chained() == deleted {
				t.Errorf("the plugin is installed: %t, want %t\n%s", l.chained(), !deleted, d.log)
			}
		})
	}
}
