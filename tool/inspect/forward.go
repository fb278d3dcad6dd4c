// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// adminPort is the port of Envoy's admin interface.
const adminPort = "15000"

// one returns the connected proxy with a name, or with a name that begins like this. Without a control plane
// it returns one of this machine.
func (f *askFlags) one(cmd *cobra.Command, name string) (proxy, error) {
	answers, err := f.connected(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return proxy{}, err
	}
	if err := pick(answers, name); err != nil {
		return proxy{}, f.cfg.Exit(exitFailed, err)
	}
	found := proxiesOf(answers)
	if len(found) == 0 {
		return proxy{}, f.cfg.Exit(exitFailed, fmt.Errorf("proxy %s has no address", name))
	}
	return found[0], nil
}

// reach returns the address of a local port of a proxy, and a function that ends the way to it. A proxy of
// this machine is asked directly, and one of a pod through the API server of the kubeconfig's current
// context: kubectl holds the credentials.
func (p proxy) reach(ctx context.Context, port string, timeout time.Duration) (address string, done func(), err error) {
	host, _, err := net.SplitHostPort(p.agent)
	if err != nil {
		return "", nil, err
	}
	if here := whereIs(host); here != "" {
		return net.JoinHostPort(here, port), func() {}, nil
	}
	name, ok := p.pod()
	if !ok {
		return "", nil, fmt.Errorf("proxy %s at %s is on another machine, and is no pod by its name: run the command on that machine", p.name, host)
	}
	way, err := forward(ctx, timeout, "--namespace="+p.namespace, "--address=127.0.0.1", "pod/"+name, ":"+port)
	if err != nil {
		return "", nil, fmt.Errorf("proxy %s at %s is on another machine: forward its port %s: %w", p.name, host, port, err)
	}
	return way.address, way.done, nil
}

// whereIs returns the address for local ports of a proxy on this machine, or "".
func whereIs(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	if ip = ip.Unmap(); ip.IsLoopback() {
		return host
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.String() == ip.String() {
			if ip.Is6() {
				return "::1"
			}
			return "127.0.0.1"
		}
	}
	return ""
}

// forwarded is a port that kubectl forwards.
type forwarded struct {
	address string // local
	stop    func()
	exited  chan struct{}
}

// done ends the forwarding.
func (f *forwarded) done() {
	f.stop()
	<-f.exited
}

// ended reports whether kubectl has ended, as when its pod is deleted.
func (f *forwarded) ended() bool {
	select {
	case <-f.exited:
		return true
	default:
		return false
	}
}

// forward runs kubectl port-forward until ctx is done, and returns once it accepts connections.
func forward(ctx context.Context, timeout time.Duration, args ...string) (*forwarded, error) {
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"port-forward"}, args...)...)
	cmd.WaitDelay = time.Second
	// Ctrl-C is for this program, which ends kubectl when it needs the port no longer.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	complaint := &limitedText{}
	cmd.Stderr = complaint
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, err
	}
	f := &forwarded{stop: stop, exited: make(chan struct{})}
	late := time.AfterFunc(timeout, stop)
	lines := bufio.NewReader(out)
	line, _ := bufio.NewReader(io.LimitReader(lines, maxErrText)).ReadString('\n') // without a line there is no address
	go func() {
		_, _ = io.Copy(io.Discard, lines) // a line for each connection
		_ = cmd.Wait()                    // it was killed, or its pod has gone
		close(f.exited)
	}()
	if late.Stop() {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "Forwarding" {
			f.address = words[2]
			return f, nil
		}
	}
	f.done()
	return nil, fmt.Errorf("kubectl port-forward %s: %s", strings.Join(args, " "), cmp.Or(oneLine(complaint.text), oneLine(line), "no answer in "+timeout.String()))
}

// limitedText keeps the beginning of what is written.
type limitedText struct{ text string }

func (t *limitedText) Write(p []byte) (int, error) {
	t.text += string(p[:min(len(p), maxErrText-len(t.text))])
	return len(p), nil
}
