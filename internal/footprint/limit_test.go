// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// TestMain also runs the program whose memory is limited. It is a separate process, because the
// limit applies to the process.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "limited" {
		result, err := json.Marshal(workUnder(os.Args[2]))
		if err != nil {
			os.Exit(1)
		}
		fmt.Println(string(result))
		return
	}
	os.Exit(m.Run())
}

const testFloor = 32 << 20

// cost is the result of a run.
type cost struct {
	Collections uint32 // during high memory use
	Limit       int64  // afterwards
}

// workUnder uses four times the floor, as for large messages, allocates 64 times the floor in small
// pieces, and then releases everything.
func workUnder(kind string) (c cost) {
	debug.SetGCPercent(50)
	if kind == "fixed" {
		debug.SetMemoryLimit(testFloor)
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go Limit(ctx, testFloor)
		for debug.SetMemoryLimit(-1) != testFloor {
			runtime.Gosched()
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	kept := make([][]byte, 4)
	for i := range kept {
		kept[i] = make([]byte, testFloor)
		time.Sleep(10 * time.Millisecond) // like network frames
	}
	var piece []byte
	for range 64 * testFloor / (64 << 10) {
		piece = make([]byte, 64<<10)
	}
	runtime.KeepAlive(piece)
	runtime.KeepAlive(kept)
	runtime.ReadMemStats(&after)
	c.Collections = after.NumGC - before.NumGC
	for deadline := time.Now().Add(time.Minute); kind != "fixed" && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if debug.SetMemoryLimit(-1) == testFloor && released() {
			break
		}
	}
	c.Limit = debug.SetMemoryLimit(-1)
	return c
}

// released reports whether the memory in use is below the floor again.
func released() bool {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()-samples[1].Value.Uint64() < testFloor
}

// TestLimit checks that memory use above the floor does not cause continuous collections, and that
// the memory is returned to the system afterwards.
func TestLimit(t *testing.T) {
	t.Parallel()
	costs := map[string]cost{}
	for _, kind := range []string{"fixed", "followed"} {
		out, err := exec.Command(os.Args[0], "limited", kind).Output()
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		var c cost
		if err := json.Unmarshal(out, &c); err != nil {
			t.Fatalf("%s: %v in %s", kind, err, out)
		}
		costs[kind] = c
	}
	t.Logf("collections: %d with a fixed limit, %d with the adaptive limit", costs["fixed"].Collections, costs["followed"].Collections)
	if got := costs["followed"].Collections; got > 60 {
		t.Errorf("%d garbage collections, want at most 60; a fixed limit causes %d", got, costs["fixed"].Collections)
	}
	if costs["followed"].Limit != testFloor {
		t.Errorf("the limit afterwards: got %d, want %d", costs["followed"].Limit, testFloor)
	}
}
