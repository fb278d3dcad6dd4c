// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestArguments compares the command line for annotations and containers with what the init
// container istio-init would run.
func TestArguments(t *testing.T) {
	t.Parallel()
	const traffic = "traffic.sidecar.istio.io/"
	for name, c := range map[string]struct {
		annotations   map[string]string
		proxy, before string // JSON of the proxy, and of the init container
		args, environ string
	}{
		"defaults": {nil, `{}`, `{}`, "-m REDIRECT -u 1337 -g 1337 -i * -x  -b * -d ,15020,15021,15090 -q  -o  -k  -c  --capture-all-dns", ""},
		"annotations": {
			map[string]string{
				traffic + "includeOutboundIPRanges": "10.0.0.0/8", traffic + "excludeOutboundIPRanges": "10.1.0.0/16", traffic + "includeInboundPorts": "", traffic + "excludeInboundPorts": "15020,81",
				traffic + "includeOutboundPorts": "82", traffic + "excludeOutboundPorts": "83", traffic + "kubevirtInterfaces": "old0", "istio.io/reroute-virtual-interfaces": "net0", traffic + "excludeInterfaces": "eth1",
				"sidecar.istio.io/interceptionMode": "TPROXY",
			},
			`{"securityContext": {"runAsUser": 1000690000, "runAsGroup": 5}}`, `{}`,
			"-m TPROXY -u 1000690000 -g 5 -i 10.0.0.0/8 -x 10.1.0.0/16 -b  -d 15020,81,15020,15021,15090 -q 82 -o 83 -k net0 -c eth1 --capture-all-dns", "",
		},
		"ports of the mesh": {nil, `{}`, `{"args": ["istio-iptables", "-p", "16001", "-z", "16006", "-u", "9"]}`, "-p 16001 -z 16006 -m REDIRECT -u 1337 -g 1337 -i * -x  -b * -d ,15020,15021,15090 -q  -o  -k  -c  --capture-all-dns", ""},
		"environment": {
			nil, `{"env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}, {"name": "PATH", "value": "/evil"}, {"name": "DRY_RUN", "value": "true"}, {"name": "ISTIO_DUAL_STACK", "value": "true"}]}`, `{}`,
			"-m REDIRECT -u 1337 -g 1337 -i * -x  -b * -d ,15020,15021,15090 -q  -o  -k  -c  --capture-all-dns", "ISTIO_META_DNS_CAPTURE=true ISTIO_DUAL_STACK=true",
		},
	} {
		var p pod
		var proxy, before container
		if err := json.Unmarshal([]byte(c.proxy), &proxy); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.before), &before); err != nil {
			t.Fatal(err)
		}
		proxy.Name, before.Name = containerProxy, containerValidation
		p.Metadata.Annotations, p.Spec.InitContainers, p.Spec.Containers = c.annotations, []container{before}, []container{proxy}
		args, environ, err := p.arguments()
		if err != nil || strings.Join(args, " ") != c.args || strings.Join(environ, " ") != c.environ {
			t.Errorf("%s: %q with %q (%v), want %q with %q", name, args, environ, err, c.args, c.environ)
		}
	}
}
