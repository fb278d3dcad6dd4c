// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Labels and names of the injector.
const (
	injectionLabel  = "istio-injection"
	revisionLabel   = "istio.io/rev"
	injectLabel     = "sidecar.istio.io/inject"
	proxyContainer  = "istio-proxy"
	statusAnnotated = "sidecar.istio.io/status"
	autoImage       = "auto"
	proxyUser       = 1337
)

// injects reports whether the labels of a namespace ask for proxies, and whether they decide at all.
func (n *namespace) injects() (yes, decided bool) {
	switch n.labels[injectionLabel] {
	case "enabled":
		return true, true
	case "disabled":
		return false, true
	}
	_, ok := n.labels[revisionLabel]
	return ok, ok
}

// namespaces checks the labels of namespaces.
func (a *analysis) namespaces() {
	populated := map[string]bool{}
	for _, p := range a.Manifests.pods {
		populated[p.namespace] = true
	}
	for _, n := range a.Manifests.namespaces {
		injection := n.labels[injectionLabel]
		_, revision := n.labels[revisionLabel]
		switch {
		case injection != "" && injection != "disabled" && revision:
			a.add("IST0123", n.Object, n.source, fmt.Sprintf("The namespace has both labels %s and %s, and only the first counts.", injectionLabel, revisionLabel), "Remove one of them.")
		case system(n.Name) || n.Name == a.root() || !populated[n.Name]:
		default:
			if _, decided := n.injects(); !decided {
				a.add("IST0102", n.Object, n.source, "The namespace has pods, but no label decides whether they receive proxies, so they receive none.",
					fmt.Sprintf("Write the label %s: enabled, or disabled to say that this is meant.", injectionLabel))
			}
		}
	}
}

// system reports whether a namespace belongs to Kubernetes.
func system(namespace string) bool { return strings.HasPrefix(namespace, "kube-") }

// wantsProxy reports whether the labels of a pod and of its namespace ask for a proxy, and whether they may:
// the namespace can be unknown.
func (a *analysis) wantsProxy(p *pod) (yes, maybe bool) {
	if a.ofPods == nil {
		a.ofPods = map[string]*namespace{}
		for _, n := range a.Manifests.namespaces {
			a.ofPods[n.Name] = n
		}
	}
	n := a.ofPods[p.namespace]
	if n != nil {
		yes, _ = n.injects()
	}
	switch cmp.Or(p.labels[injectLabel], p.annotations[injectLabel]) {
	case "true":
		return true, true
	case "false":
		return false, false
	}
	return yes, yes || n == nil
}

// pods checks pods and their templates.
func (a *analysis) pods() {
	for _, p := range a.Manifests.pods {
		if system(p.namespace) {
			continue
		}
		proxy := slices.ContainsFunc(p.containers(), func(c corev1.Container) bool { return c.Name == proxyContainer })
		wants, may := a.wantsProxy(p)
		switch {
		case proxy || !wants:
		case p.spec.HostNetwork: // Istio's own analysis is silent, and its list of common problems is not
			a.add("IST0103", p.Object, p.source, "The pod is on the network of its host, so it receives no proxy.", fmt.Sprintf("Remove hostNetwork, or write the label %s: \"false\" to say that this is meant.", injectLabel))
		case !p.template && p.annotations[statusAnnotated] == "":
			a.add("IST0103", p.Object, p.source, fmt.Sprintf("The pod has no container %s, although its labels and namespace ask for a proxy.", proxyContainer), "Restart the pod, so that it passes the webhook.")
		}
		a.autoImage(p, may)
		a.user(p)
	}
}

// autoImage finds containers whose image only the injector fills in.
func (a *analysis) autoImage(p *pod, injected bool) {
	for _, c := range p.containers() {
		switch {
		case c.Image != autoImage:
		case !p.template:
			a.add("IST0147", p.Object, p.source, fmt.Sprintf("The container %s has the image %q, which the injector has not replaced.", c.Name, autoImage), "Label the namespace or the pod for injection, and restart it.")
		case !injected:
			a.add("IST0146", p.Object, p.source, fmt.Sprintf("The container %s has the image %q, but no label asks for injection.", c.Name, autoImage), fmt.Sprintf("Write the label %s: \"true\".", injectLabel))
		}
	}
}

// user finds applications with the user of the proxy, whose connections are not redirected.
func (a *analysis) user(p *pod) {
	if s := p.spec.SecurityContext; s != nil && s.RunAsUser != nil && *s.RunAsUser == proxyUser {
		a.add("IST0144", p.Object, p.source, fmt.Sprintf("The pod runs as user %d, the user of the proxy, so its connections bypass the proxy.", proxyUser), "Write another runAsUser.")
	}
	for _, c := range p.containers() {
		if s := c.SecurityContext; c.Name != proxyContainer && s != nil && s.RunAsUser != nil && *s.RunAsUser == proxyUser {
			a.add("IST0144", p.Object, p.source, fmt.Sprintf("The container %s runs as user %d, the user of the proxy, so its connections bypass the proxy.", c.Name, proxyUser), "Write another runAsUser.")
		}
	}
}

// use is a port of a workload that a Service leads to.
type use struct {
	service  *service
	port     int32
	target   string
	protocol model.Protocol
}

// services checks Services, and those of one workload against each other.
func (a *analysis) services() {
	uses := map[*pod][]use{}
	index := map[string]*labelIndex{}
	of := map[*Workload]*pod{}
	for _, p := range a.Manifests.pods {
		w := &Workload{Namespace: p.namespace, Name: p.name, Labels: p.labels}
		if index[p.namespace] == nil {
			index[p.namespace] = &labelIndex{}
		}
		index[p.namespace].add(w)
		of[w] = p
	}
	for _, s := range a.Manifests.services {
		if system(s.Object.Namespace) {
			continue
		}
		if s.Object.Namespace != a.root() {
			a.portNames(s)
		}
		if len(s.Spec.Selector) == 0 {
			continue
		}
		for _, w := range index[s.Object.Namespace].candidates(s.Spec.Selector) {
			a.steps++
			if !model.Selects(s.Spec.Selector, w.Labels) {
				continue
			}
			for _, p := range s.Spec.Ports {
				target := p.TargetPort.String()
				if target == "0" || target == "" {
					target = fmt.Sprint(p.Port)
				}
				uses[of[w]] = append(uses[of[w]], use{s, p.Port, target, model.ParseKubernetesPort(p.Name, p.AppProtocol, uint32(p.Port))})
			}
		}
	}
	for _, p := range a.Manifests.pods {
		if _, may := a.wantsProxy(p); may && p.template {
			a.uses(p, uses[p])
		}
	}
}

// uses compares the Services of a workload.
func (a *analysis) uses(p *pod, list []use) {
	byPort, byTarget := map[int32]use{}, map[string]use{}
	for _, u := range list {
		if first, ok := byPort[u.port]; !ok {
			byPort[u.port] = u
		} else if first.service != u.service && first.protocol != u.protocol && !first.protocol.Sniffed() && !u.protocol.Sniffed() {
			a.add("IST0116", p.Object, p.source, fmt.Sprintf("The Services %s and %s lead to the workload with port %d as %s and as %s.", first.service.Object.Name, u.service.Object.Name, u.port, first.protocol, u.protocol), "Use one protocol for the port.")
		}
		if first, ok := byTarget[u.target]; !ok {
			byTarget[u.target] = u
		} else if first.service != u.service && first.port != u.port {
			a.add("IST0137", p.Object, p.source, fmt.Sprintf("The Services %s and %s lead to the port %s of the workload from the ports %d and %d.", first.service.Object.Name, u.service.Object.Name, u.target, first.port, u.port), "Use one port of the Services for each target port.")
		}
	}
}

// portNames checks what the names of ports say about protocols.
func (a *analysis) portNames(s *service) {
	for _, p := range s.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		protocol := model.ParseKubernetesPort(p.Name, p.AppProtocol, uint32(p.Port))
		switch {
		case s.Spec.Type == corev1.ServiceTypeExternalName:
			if protocol.Sniffed() || protocol == model.ProtocolTCP {
				a.add("IST0150", s.Object, s.source, fmt.Sprintf("The port %d (%q) of a Service of type ExternalName is no HTTP or TLS port, so its listener takes the connections of other services too.", p.Port, p.Name), "Begin the name with http- or tls-, or write appProtocol.")
			}
		case protocol.Sniffed():
			a.add("IST0118", s.Object, s.source, fmt.Sprintf("The name %q of the port %d says no protocol, so the protocol is detected.", p.Name, p.Port), "Begin the name with a protocol, such as http- or tcp-, or write appProtocol.")
		}
	}
}

// annotations checks the annotations of pods.
func (a *analysis) annotations() {
	for _, p := range a.Manifests.pods {
		if err := inject.CheckAnnotations(p.annotations); err != nil {
			for line := range strings.Lines(err.Error()) {
				message, cure := sentences(strings.TrimSpace(line))
				a.add("IST0125", p.Object, p.source, capital(message), cure)
			}
		}
		a.annotationNames(p.place, "Pod", p.annotations)
		a.annotationNames(p.place, p.Kind, p.owner)
	}
	for _, s := range a.Manifests.services {
		a.annotationNames(s.place, "Service", s.Annotations)
	}
	for _, n := range a.Manifests.namespaces {
		a.annotationNames(n.place, "Namespace", n.annotations)
	}
	for _, c := range a.Objects {
		a.annotationNames(place{ObjectOf(c.Key), c.Source}, ObjectOf(c.Key).Kind, c.Annotations)
	}
}

// annotationNames checks the names of annotations on an object of a kind.
func (a *analysis) annotationNames(at place, kind string, annotations map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		domain, _, ok := strings.Cut(name, "/")
		if name != annotation.IoKubernetesIngressClass.Name && (!ok || domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") || strings.HasPrefix(domain, "internal.")) {
			continue
		}
		known := istioAnnotation(name)
		switch {
		case known == nil:
			a.add("IST0108", at.Object, at.source, fmt.Sprintf("Istio has no annotation %s.", name), "Correct the name, or remove it.")
		case !known.on(kind):
			a.add("IST0107", at.Object, at.source, fmt.Sprintf("The annotation %s has no effect on a %s.", name, kind), fmt.Sprintf("Move it to a %s.", known.kinds()))
		case known.Deprecated:
			a.add("IST0135", at.Object, at.source, fmt.Sprintf("The annotation %s is deprecated.", name), "Remove it, or use its successor.")
		}
	}
}

// webhooks finds webhooks whose Service is missing.
func (a *analysis) webhooks() {
	if len(a.Manifests.services) == 0 {
		return
	}
	services := map[objectName]*service{}
	for _, s := range a.Manifests.services {
		services[objectName{s.Object.Namespace, s.Object.Name}] = s
	}
	for _, w := range a.Manifests.webhooks {
		s := services[objectName{w.namespace, w.service}]
		switch {
		case s == nil:
			a.add("IST0139", w.Object, w.source, fmt.Sprintf("The webhook %s calls the Service %s/%s, which does not exist.", w.name, w.namespace, w.service), "Correct the Service, or remove the webhook.")
		case !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == w.port }):
			a.add("IST0139", w.Object, w.source, fmt.Sprintf("The webhook %s calls the port %d of the Service %s/%s, which has no such port.", w.name, w.port, w.namespace, w.service), "Correct the port.")
		}
	}
}
