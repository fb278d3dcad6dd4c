// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

var leaks = flag.Int("leaks", 100, "how many pods TestNoLeaks starts")

// TestNoLeaks starts pods while the installer is stopped, killed and started repeatedly, and while
// the API server fails some requests and does not know some pods. Each pod that starts must have
// rules.
func TestNoLeaks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.write("net.d/10-pods.conflist", fmt.Sprintf(podNetwork, "1.0.0"))
	d := l.installed("REPAIR_ENABLED=false")
	l.mu.Lock()
	l.faults = 5
	l.mu.Unlock()

	const atOnce = 4
	var started, refused, leaked, restarts atomic.Int64
	var group sync.WaitGroup
	numbers := make(chan int)
	for range atOnce {
		group.Go(func() {
			for n := range numbers {
				_, name := podName(n)
				if n%10 > 0 {
					l.set("apps", name, injected)
				}
				netns, end, err := newNamespace()
				if err != nil {
					t.Error(err)
					return
				}
				err = l.add(t.Context(), "apps", name, netns)
				captured, checkErr := capture.Captured(netns)
				switch {
				case checkErr != nil:
					t.Error(checkErr)
				case err != nil:
					refused.Add(1)
				case captured:
					started.Add(1)
				default:
					leaked.Add(1)
					t.Errorf("pod %s was started without rules", name)
				}
				end()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(numbers)
		for n := range *leaks {
			numbers <- n
		}
	}()
	for running := true; running; {
		time.Sleep(rand.N(100 * time.Millisecond)) // at a different moment of the installer each time
		l.stop(d, []os.Signal{syscall.SIGTERM, os.Kill}[rand.N(2)])
		d = l.start("REPAIR_ENABLED=false")
		restarts.Add(1)
		select {
		case <-done:
			running = false
		default:
		}
	}
	group.Wait()
	t.Logf("%d pods started with rules, %d were refused, %d leaked; the installer was restarted %d times", started.Load(), refused.Load(), leaked.Load(), restarts.Load())
	if started.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d pods started and %d were refused, want some of both", started.Load(), refused.Load())
	}
}
