// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelText    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	variableName = regexp.MustCompile(`^[-._A-Za-z][-._A-Za-z0-9]*$`)
)

// protocols are the valid protocols of a workload. The port of the service has the same name in
// lower case.
var protocols = []string{"HTTP", "HTTP2", "GRPC", "TCP"}

// ownSettings maps the fields of MeshConfig that outrigger sets itself to a hint for the user.
var ownSettings = map[string]string{
	"configSources": "write config: at the top of the mesh file",
	"trustDomain":   "write trustDomain: at the top of the mesh file",
	"rootNamespace": "it is " + rootNamespace,
}

// ownProxySettings are the fields of the MeshConfig's defaultConfig that outrigger sets itself.
var ownProxySettings = []string{"binaryPath", "configPath", "controlPlaneAuthPolicy", "customConfigFile", "discoveryAddress", "proxyAdminPort", "statusPort"}

// checkSettings validates the MeshConfig of a mesh file, as the control plane does, and returns the
// lines of its fields. It validates each field by itself, so that an error names its line.
func (r *reader) checkSettings(n *yaml.Node, m map[string]any) (lines map[string]int) {
	known := map[string]bool{}
	fields := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		known[fields.Get(i).JSONName()] = true
	}
	lines = map[string]int{}
	r.pairs(n, "mesh", func(k, v *yaml.Node) {
		lines[k.Value] = k.Line
		if k.Value == "defaultConfig" {
			r.pairs(v, "mesh: defaultConfig", func(k, _ *yaml.Node) {
				if slices.Contains(ownProxySettings, k.Value) {
					r.add(k.Line, "mesh: defaultConfig: %s is set by outrigger: remove it", k.Value)
				}
			})
		}
		if cure, ok := ownSettings[k.Value]; ok {
			r.add(k.Line, "mesh: %s is set by outrigger: %s", k.Value, cure)
		} else if !known[k.Value] {
			r.add(k.Line, "mesh: Istio's MeshConfig has no field %q; %s", k.Value, suggest(k.Value, sortedKeys(known)))
			delete(m, k.Value)
		} else if err := checkSetting(k.Value, m[k.Value]); err != nil {
			r.add(k.Line, "mesh: %v", err)
		}
	})
	return lines
}

// checkSetting validates one field of MeshConfig.
func checkSetting(name string, value any) error {
	data, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		return fmt.Errorf("not a MeshConfig: %w", err)
	}
	if unknown := meshconfig.Unknown(data, &meshv1alpha1.MeshConfig{}); len(unknown) > 0 { // Parse accepts them
		return fmt.Errorf("no field %s in Istio's MeshConfig", strings.Join(unknown, ", "))
	}
	if _, err = meshconfig.Parse(data); err != nil {
		return errors.Unwrap(err) // without "mesh config: "
	}
	return nil
}

// complete sets the defaults and returns the problems of the values.
func (m *meshFile) complete() []Problem {
	r := &reader{}
	if m.trustDomain == "" {
		m.trustDomain = clusterDomain
	}
	if !dnsSubdomain.MatchString(m.trustDomain) {
		r.add(m.lines["trustDomain"], "trustDomain: %q is not a domain name: write one such as cluster.local", m.trustDomain)
	}
	if !m.network.IsValid() {
		m.network = netip.MustParsePrefix(defaultNetwork)
	}
	m.proxyPort = proxyHTTPPort
	if p, ok := m.settings[proxyPortSetting].(int); ok && p > 0 {
		m.proxyPort = p
	}
	if what, taken := reservedPorts[m.proxyPort]; taken {
		r.add(m.settingLines[proxyPortSetting], "mesh: %s %d is %s: choose another port", proxyPortSetting, m.proxyPort, what)
	}
	for _, name := range []string{"proxyListenPort", "proxyInboundListenPort"} {
		if line, set := m.settingLines[name]; set && m.isolated {
			r.add(line, "mesh: %s is set by outrigger with --isolate=netns: remove it", name)
		}
	}
	if m.configDir != "" {
		m.checkConfigDir(r)
	}
	if len(m.workloads) == 0 && len(r.problems) == 0 {
		r.add(0, "workloads: the list is missing or empty: name at least one workload with name and command")
	}
	for _, w := range m.workloads {
		m.completeWorkload(r, w)
	}
	m.assignAddresses(r)
	m.checkShared(r)
	for _, w := range m.workloads {
		if !m.described {
			m.checkCommand(r, w)
		}
	}
	return r.problems
}

// checkConfigDir reports a configuration directory that can be neither read nor created. Its parent
// must exist, so that a mistyped path is a problem.
func (m *meshFile) checkConfigDir(r *reader) {
	m.configDir = absolute(m.dir(), m.configDir)
	info, err := os.Stat(m.configDir)
	if errors.Is(err, fs.ErrNotExist) {
		m.newConfig = true
		info, err = os.Stat(filepath.Dir(m.configDir))
	}
	if err != nil || !info.IsDir() {
		r.add(m.lines["config"], "config: %s is not a directory: name the directory of your Istio YAML, relative to the mesh file", m.configDir)
	}
}

func (m *meshFile) completeWorkload(r *reader, w *workload) {
	setDefault(&w.namespace, defaultNamespace)
	setDefault(&w.service, w.name)
	setDefault(&w.serviceAccount, w.service)
	setDefault(&w.protocol, protocols[0])
	w.protocol = strings.ToUpper(w.protocol)
	if _, given := w.lines["servicePort"]; !given {
		w.servicePort = w.port
	}
	w.dir = absolute(m.dir(), w.dir)
	if w.labels == nil {
		w.labels = map[string]string{}
	}
	w.check(r)
	if app, ok := w.labels[appLabel]; ok && app != w.service {
		r.add(w.lineOf("labels"), "%s: label app is %q, but outrigger sets it to the service, %q: remove the label or set service: %s",
			w.where, app, w.service, app)
	}
	w.labels[appLabel] = w.service
	w.labels[workloadLabel] = w.name
}

// check returns the problems of a single workload.
func (w *workload) check(r *reader) {
	at := func(field string) int { return w.lineOf(field) }
	if _, given := w.lines["name"]; !given {
		r.add(w.line, "a workload has no name: add name: with a DNS label, for example name: frontend")
	} else if !dnsLabel.MatchString(w.name) {
		r.add(at("name"), "%s: the name must be a DNS label: lower-case letters, digits and -, at most 63", w.where)
	} else if w.name == controlName {
		r.add(at("name"), "%s: the name is taken by the control plane: choose another one", w.where)
	}
	for _, f := range []struct{ field, value string }{{"namespace", w.namespace}, {"service", w.service}, {"serviceAccount", w.serviceAccount}} {
		if _, given := w.lines[f.field]; given && !dnsLabel.MatchString(f.value) {
			r.add(at(f.field), "%s: %s: %q must be a DNS label: lower-case letters, digits and -, at most 63", w.where, f.field, f.value)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(w.labels)) {
		if reason := labelProblem(k, w.labels[k]); reason != "" {
			r.add(at("labels"), "%s: label %q: %q: %s", w.where, k, w.labels[k], reason)
		}
	}
	for _, v := range w.env {
		if !variableName.MatchString(v.name) {
			r.add(at("env"), "%s: env: %q is not the name of a variable: letters, digits, _, - and . only", w.where, v.name)
		}
	}
	for _, field := range []string{"servicePort", "protocol", "path"} {
		if _, given := w.lines[field]; given && !w.listens() {
			r.add(at(field), "%s: the port is missing: add port: with the port on which the application listens on 127.0.0.1, or remove %s", w.where, field)
		}
	}
	if !slices.Contains(protocols, w.protocol) {
		r.add(at("protocol"), "%s: protocol %q is not supported in a mesh on one machine: use one of %s", w.where, w.protocol, strings.Join(protocols, ", "))
	}
	if w.readyPath != "" && !strings.HasPrefix(w.readyPath, "/") {
		r.add(at("path"), "%s: ready: path %q must begin with /", w.where, w.readyPath)
	}
	if info, err := os.Stat(w.dir); err != nil || !info.IsDir() {
		r.add(at("dir"), "%s: dir: %s is not a directory: name one, relative to the mesh file", w.where, w.dir)
	}
}

func (m *meshFile) checkCommand(r *reader, w *workload) {
	if _, given := w.lines["command"]; given && w.command == nil {
		return // not a list, which has been reported already
	}
	if len(w.command) == 0 || w.command[0] == "" {
		r.add(w.lineOf("command"), "%s: the command is missing: add command: with the program and its arguments, "+
			"for example command: [./server, --port, $(PORT)]", w.where)
		return
	}
	program := m.argv(w)[0]
	_, err := resolve(m.dir(), program)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		r.add(w.lineOf("command"), "%s: command: there is no program %s: build it, or name a program on PATH or relative to %s", w.where, program, m.dir())
	default:
		r.add(w.lineOf("command"), "%s: command: %v", w.where, err)
	}
}

// resolve finds a program: relative to dir if its name contains a slash, otherwise in PATH.
func resolve(dir, program string) (string, error) {
	if strings.Contains(program, "/") {
		program = absolute(dir, program)
	}
	return exec.LookPath(program)
}

// assignAddresses assigns the next free address to each workload that has none.
func (m *meshFile) assignAddresses(r *reader) {
	taken := map[netip.Addr]string{
		m.controlAddress():                     "the control plane",
		netip.AddrFrom4([4]byte{127, 0, 0, 1}): "the applications",
	}
	for _, w := range m.workloads {
		if !w.address.IsValid() {
			continue
		}
		if owner, ok := taken[w.address]; ok {
			r.add(w.lineOf("address"), "%s: address %s belongs to %s: give each workload its own, or omit it to have one chosen", w.where, w.address, owner)
			continue
		}
		if m.isolated && !m.network.Contains(w.address) {
			r.add(w.lineOf("address"), "%s: address %s is outside of network %s, which --isolate=netns requires: choose one in it, or another network", w.where, w.address, m.network)
		}
		taken[w.address] = fmt.Sprintf("workload %q", w.name)
	}
	next := m.controlAddress().Next()
	for _, w := range m.workloads {
		if w.address.IsValid() {
			continue
		}
		for taken[next] != "" {
			next = next.Next()
		}
		if !m.network.Contains(next) {
			r.add(w.line, "%s: no address is left in network %s: choose a larger network", w.where, m.network)
			return
		}
		w.address = next
		taken[next] = w.name
	}
}

// checkShared validates workloads against each other: names and ports on 127.0.0.1 must be unique,
// and the workloads of a service must agree.
func (m *meshFile) checkShared(r *reader) {
	names, ports, services := map[string]*workload{}, map[int]*workload{}, map[string]*workload{}
	for _, w := range m.workloads {
		if other := names[w.name]; other != nil && w.name != "" {
			r.add(w.lineOf("name"), "%s: the name is taken by the workload on line %d: rename one", w.where, other.line)
		} else {
			names[w.name] = w
		}
		if other := ports[w.port]; other != nil && w.port > 0 {
			r.add(w.lineOf("port"), "%s: port %d of 127.0.0.1 is taken by workload %q: give each application its own port", w.where, w.port, other.name)
		} else {
			ports[w.port] = w
		}
		what, taken := reservedPorts[w.servicePort]
		if !taken && m.isolated {
			what, taken = redirectPorts[w.servicePort]
		}
		if w.servicePort == m.proxyPort {
			what, taken = "Envoy's port for outbound HTTP (mesh.proxyHttpPort)", true
		}
		if taken {
			r.add(w.lineOf("servicePort"), "%s: servicePort %d is %s: choose another port", w.where, w.servicePort, what)
		}
		if !w.listens() {
			continue
		}
		key := w.namespace + "/" + w.service
		first := services[key]
		if first == nil {
			services[key] = w
			continue
		}
		if w.servicePort != first.servicePort || w.protocol != first.protocol {
			r.add(w.lineOf("servicePort"), "%s: service %q has port %d (%s) here and %d (%s) in workload %q: make them equal",
				w.where, w.service, w.servicePort, w.protocol, first.servicePort, first.protocol, first.name)
		}
	}
}

// labelProblem returns what is wrong with a label, or "" if it is valid.
func labelProblem(key, value string) string {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	}
	switch {
	case ok && !dnsSubdomain.MatchString(prefix):
		return "the part before / must be a domain name"
	case !labelText.MatchString(name):
		return "the key must be letters, digits, -, _ and ., at most 63, with a letter or digit at both ends"
	case value != "" && !labelText.MatchString(value):
		return "the value must be letters, digits, -, _ and ., at most 63, with a letter or digit at both ends"
	case prefix == "outrigger.mesh":
		return "labels of outrigger.mesh are set by outrigger"
	}
	return ""
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}
