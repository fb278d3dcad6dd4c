// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

const (
	resolvConf = "/etc/resolv.conf"
	nsswitch   = "/etc/nsswitch.conf"
)

// nameCaches are directories with sockets of programs that resolve names in the network of the
// machine, for every process that finds the socket.
var nameCaches = []string{"/run/nscd", "/var/run/nscd"}

// view returns the files that make the C library ask the DNS proxy of the agent, by their paths.
func view(hub netip.Addr, search []string) map[string]string {
	files := map[string]string{
		resolvConf: fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:5\n", hub, strings.Join(search, " ")),
	}
	if text, err := os.ReadFile(nsswitch); err == nil {
		files[nsswitch] = onlyDNS(string(text))
	}
	return files
}

// onlyDNS returns nsswitch.conf with host names from files and DNS alone.
func onlyDNS(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "hosts:") {
			lines[i] = "hosts: files dns"
		}
	}
	return strings.Join(lines, "\n")
}

// viewPath returns the path of a file that the processes of a workload see as file.
func (n *Network) viewPath(workload, file string) string {
	return filepath.Join(n.cfg.Dir, "view", workload, strings.ReplaceAll(strings.TrimPrefix(file, "/"), "/", "-"))
}

func (n *Network) emptyDir() string { return filepath.Join(n.cfg.Dir, "view", "empty") }

// viewMounts returns the mounts for the processes of a workload.
func (n *Network) viewMounts(workload string) []mount {
	var all []mount
	for _, file := range []string{resolvConf, nsswitch} {
		if from := n.viewPath(workload, file); exists(from) {
			all = append(all, mount{from: from, to: file})
		}
	}
	for _, dir := range nameCaches {
		if exists(dir) {
			all = append(all, mount{from: n.emptyDir(), to: dir})
		}
	}
	return all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
