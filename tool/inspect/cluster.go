// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of what is asked of a cluster.
const (
	controlPort = "15014"
	maxReplicas = 10
	maxForwards = 64 // ports of proxies
	listEvery   = 30 * time.Second
	retryEvery  = 30 * time.Second
)

// errCluster is in errors of clusters, which are no mistakes of the command line.
var errCluster = errors.New("name another control plane with --control")

// Cluster forwards ports of the pods of the kubeconfig's current cluster: kubectl holds the credentials.
type Cluster struct {
	ctx  context.Context // of the processes of kubectl
	stop func()
	// namespace is that of the control plane, timeout that of each question about it. They are set before
	// the first one.
	namespace string
	timeout   time.Duration

	mu     sync.Mutex // guards the fields below
	roads  map[string]*road
	names  []string // pods of the control plane
	listed time.Time
}

// road is a forwarded port.
type road struct {
	mu  sync.Mutex // guards the fields below, and is held while kubectl starts
	way *forwarded
	err error
	at  time.Time // of err
}

// NewCluster returns the cluster of a kubeconfig whose control plane is in a namespace, "" for
// istio-system. The processes of kubectl end with ctx, or with [Cluster.Close].
func NewCluster(ctx context.Context, namespace string) *Cluster {
	c := &Cluster{roads: map[string]*road{}, namespace: cmp.Or(namespace, defaultNamespace), timeout: defaultTimeout}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

// hurry bounds the time of questions about the control plane.
func (c *Cluster) hurry(timeout time.Duration) {
	if c != nil {
		c.timeout = timeout
	}
}

// controlNamespace returns the namespace of the control plane.
func (c *Cluster) controlNamespace() string {
	if c == nil {
		return defaultNamespace
	}
	return c.namespace
}

// lookIn sets the namespace of the control plane.
func (c *Cluster) lookIn(namespace string) {
	if c != nil {
		c.namespace = namespace
	}
}

// Close ends all forwarding.
func (c *Cluster) Close() {
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.roads {
		r.mu.Lock()
		if r.way != nil {
			r.way.done()
		}
		r.mu.Unlock()
	}
}

// usable reports whether kubectl can be asked.
func (c *Cluster) usable() bool {
	if c == nil {
		return false
	}
	_, err := exec.LookPath("kubectl")
	return err == nil
}

// to returns a local address that leads to a port of a pod.
func (c *Cluster) to(namespace, pod, port string, timeout time.Duration) (string, error) {
	key := namespace + "/" + pod + ":" + port
	c.mu.Lock()
	r := c.roads[key]
	if r == nil {
		r = &road{}
		c.roads[key] = r
	}
	c.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.way != nil && !r.way.ended():
		return r.way.address, nil
	case r.err != nil && time.Since(r.at) < retryEvery:
		return "", r.err
	}
	r.way, r.err = forward(c.ctx, timeout, "--namespace="+namespace, "--address=127.0.0.1", "pod/"+pod, ":"+port)
	if r.err != nil {
		r.at = time.Now()
		return "", r.err
	}
	return r.way.address, nil
}

// controls returns local addresses that lead to the replicas of the control plane.
func (c *Cluster) controls() ([]string, error) {
	names, err := c.replicas()
	if err != nil {
		return nil, fmt.Errorf("no control plane runs on this machine, and in the cluster: %w; %w", err, errCluster)
	}
	out := make([]string, len(names))
	var g errgroup.Group
	for i, name := range names {
		g.Go(func() (err error) {
			out[i], err = c.to(c.namespace, name, controlPort, c.timeout)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("no control plane runs on this machine, and that of the cluster is not reached: %w; %w", err, errCluster)
	}
	return out, nil
}

// replicas returns the pods of the control plane.
func (c *Cluster) replicas() ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) > 0 && time.Since(c.listed) < listEvery {
		return c.names, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	args := []string{"get", "pods", "--namespace=" + c.namespace, "--selector=app=istiod", "--field-selector=status.phase=Running", "--output=jsonpath={.items[*].metadata.name}"}
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.WaitDelay = time.Second
	complaint, out := &limitedText{}, &limitedText{}
	cmd.Stderr, cmd.Stdout = complaint, out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("kubectl %s: %s", strings.Join(args[:2], " "), cmp.Or(oneLine(complaint.text), err.Error()))
	}
	names := strings.Fields(out.text)
	if len(names) == 0 {
		return nil, errors.New("no pod with the label app=istiod runs in the namespace " + c.namespace + ": name that of the control plane with --istioNamespace")
	}
	c.names, c.listed = names[:min(len(names), maxReplicas)], time.Now()
	return c.names, nil
}

// agents returns proxies with addresses of their agents that lead there from this machine. Proxies that are
// not forwarded keep their addresses, which may lead there, too.
func (c *Cluster) agents(proxies []proxy, timeout time.Duration, complaints io.Writer) ([]proxy, error) {
	if !c.usable() {
		return proxies, nil
	}
	out, errs, n := make([]proxy, len(proxies)), make([]error, len(proxies)), 0
	copy(out, proxies)
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, p := range proxies {
		host, port, err := net.SplitHostPort(p.agent)
		pod, ok := p.pod()
		if err != nil || whereIs(host) != "" || !ok {
			continue
		}
		if n++; n > maxForwards {
			break
		}
		g.Go(func() error {
			if address, err := c.to(p.namespace, pod, port, timeout); err != nil {
				errs[i] = err
			} else {
				out[i].agent = address
			}
			return nil
		})
	}
	_ = g.Wait() // each proxy has its own error
	if n > maxForwards {
		return nil, fmt.Errorf("the ports of more than %d pods would have to be forwarded: choose some with PROXY or -n NAMESPACE", maxForwards)
	}
	for i, err := range errs {
		if err != nil {
			_, _ = fmt.Fprintf(complaints, "error: proxy %s: %v\n", proxies[i].name, err) // the terminal may be closed
		}
	}
	return out, nil
}

// pod returns the name of the pod of a proxy. It returns false for a proxy that is no pod by its name.
func (p proxy) pod() (string, bool) {
	name, ok := strings.CutSuffix(p.name, "."+p.namespace)
	return name, ok && p.namespace != ""
}
