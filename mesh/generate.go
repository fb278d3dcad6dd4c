// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is a Kubernetes-style object as found in YAML files.
type object map[string]any

func newObject(kind, namespace, name string, spec object) object {
	return object{
		"apiVersion": "networking.istio.io/v1",
		"kind":       kind,
		"metadata":   object{"name": name, "namespace": namespace},
		"spec":       spec,
	}
}

// generated returns the configuration that registers the workloads with the control plane: a
// ServiceEntry for each service and, for each workload, a WorkloadEntry and a Sidecar with its
// inbound listener.
func (m *meshFile) generated() ([]byte, error) {
	var objects []object
	services := map[string]bool{}
	for _, w := range m.workloads {
		if !w.listens() {
			continue
		}
		if key := w.namespace + "/" + w.service; !services[key] {
			services[key] = true
			objects = append(objects, m.serviceEntry(w, len(services)))
		}
		objects = append(objects, m.workloadEntry(w), m.sidecar(w))
	}
	var b strings.Builder
	b.WriteString("# Made by outrigger up from its mesh file.\n")
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("write %s as YAML: %w", o["kind"], err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return []byte(b.String()), nil
}

// host returns the host name of the workload's service.
func (w *workload) host() string {
	return fmt.Sprintf("%s.%s.svc.%s", w.service, w.namespace, clusterDomain)
}

// portName returns the name of the service's port, which a WorkloadEntry maps to its port number.
func (w *workload) portName() string { return strings.ToLower(w.protocol) }

func (w *workload) portSpec() object {
	return object{"number": w.servicePort, "name": w.portName(), "protocol": w.protocol}
}

// virtual is the network of the addresses that names of services resolve to in network namespaces.
// They exist nowhere: Envoy takes the connections. The control plane allocates from 240.240.0.0/16.
var virtual = netip.MustParseAddr("240.241.0.0").As4()

// serviceEntry returns the object of a service, which is the nth, from 1.
func (m *meshFile) serviceEntry(w *workload, n int) object {
	spec := object{
		"hosts":            []string{w.host()},
		"location":         "MESH_INTERNAL",
		"resolution":       "STATIC",
		"ports":            []object{w.portSpec()},
		"workloadSelector": object{"labels": map[string]string{appLabel: w.service}},
	}
	if m.isolated {
		spec["addresses"] = []string{netip.AddrFrom4([4]byte{virtual[0], virtual[1], byte(n >> 8), byte(n)}).String()}
	}
	return newObject("ServiceEntry", w.namespace, w.service, spec)
}

func (m *meshFile) workloadEntry(w *workload) object {
	return newObject("WorkloadEntry", w.namespace, w.name, object{
		"address":        m.addressOf(w).String(),
		"ports":          object{w.portName(): w.servicePort},
		"labels":         w.labels,
		"serviceAccount": w.serviceAccount,
	})
}

// sidecar returns the object that leads requests to the application. Without isolation Envoy listens
// on the workload's address; otherwise its inbound connections are redirected.
func (m *meshFile) sidecar(w *workload) object {
	ingress := object{"port": w.portSpec(), "defaultEndpoint": fmt.Sprintf("127.0.0.1:%d", w.port)}
	if !m.isolated {
		ingress["bind"] = w.address.String()
	}
	o := newObject("Sidecar", w.namespace, w.name, object{
		"workloadSelector": object{"labels": w.selector()},
		"ingress":          []object{ingress},
	})
	o["metadata"].(object)["annotations"] = object{replaceable: "true"}
	return o
}

// replaceable is the annotation of objects that the control plane ignores if the user has the same.
const replaceable = "outrigger.mesh/replaceable"

// ingressOf returns the lines that a Sidecar of the user needs for the requests to a workload.
func (m *meshFile) ingressOf(namespace, name string) string {
	for _, w := range m.workloads {
		if w.listens() && w.namespace == namespace && w.name == name {
			spec := m.sidecar(w)["spec"].(object)
			text, err := json.Marshal(object{"workloadSelector": spec["workloadSelector"], "ingress": spec["ingress"]})
			if err == nil {
				return string(text)
			}
		}
	}
	return ""
}

// objectLine returns the line of the workload that a generated object is made from, or 0.
func (m *meshFile) objectLine(kind, namespace, name string) int {
	for _, w := range m.workloads {
		from := w.name
		if kind == "ServiceEntry" {
			from = w.service
		}
		if w.listens() && w.namespace == namespace && from == name {
			return w.line
		}
	}
	return 0
}

// meshConfig returns the mesh config file of the control plane: the user's settings, with the
// fields that outrigger sets.
func (m *meshFile) meshConfig(generatedDir string) ([]byte, error) {
	config := maps.Clone(m.settings)
	if config == nil {
		config = map[string]any{}
	}
	sources := []object{{"address": fileURL(generatedDir)}}
	if m.configDir != "" {
		sources = append(sources, object{"address": fileURL(m.configDir)})
	}
	config["configSources"] = sources
	if _, set := config["defaultProviders"]; !set {
		config["defaultProviders"] = object{"metrics": []string{"prometheus"}}
	}
	config["trustDomain"] = m.trustDomain
	config["rootNamespace"] = rootNamespace
	config["proxyHttpPort"] = m.proxyPort
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write the mesh config as YAML: %w", err)
	}
	return text, nil
}

// proxyConfig returns the ProxyConfig of all agents: the user's defaultConfig, with the fields that
// outrigger sets.
func (m *meshFile) proxyConfig(envoy string) map[string]any {
	config := map[string]any{"concurrency": 1, "terminationDrainDuration": "1s"}
	if own, ok := m.settings["defaultConfig"].(map[string]any); ok {
		maps.Copy(config, own)
	}
	control := m.controlAddress()
	if m.inside != nil {
		control = m.inside(control) // the hub, which forwards
	}
	config["discoveryAddress"] = hostPort(control, controlSecurePort)
	config["binaryPath"] = envoy
	config["statusPort"] = statusPort
	config["proxyAdminPort"] = adminPort
	return config
}

// labelsFile formats labels like Kubernetes' downward API.
func labelsFile(labels map[string]string) []byte {
	var b strings.Builder
	for _, k := range sortedKeys(labels) {
		fmt.Fprintf(&b, "%s=%q\n", k, labels[k])
	}
	return []byte(b.String())
}

func fileURL(dir string) string { return (&url.URL{Scheme: "fs", Path: dir}).String() }
