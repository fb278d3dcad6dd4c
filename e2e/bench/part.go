// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// failure is a panic value that ends a part. It does not leave this package: attempt recovers it.
type failure struct{ err error }

// check ends the part that runs on this goroutine if err is not nil. Deferred functions of the part
// run. Other goroutines, and the helpers, return errors instead.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns a value, or ends the part like check.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// fail ends the part.
func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// attempt runs a part and returns its failure.
func attempt(ctx context.Context, part func(context.Context)) (err error) {
	defer func() {
		if v := recover(); v != nil {
			f, ok := v.(failure)
			if !ok {
				panic(v)
			}
			err = f.err
		}
	}()
	part(ctx)
	return nil
}

// median returns the median of the values that of returns for the samples.
func median[T any](samples []T, of func(T) float64) float64 {
	if len(samples) == 0 {
		check(errors.New("nothing was measured"))
	}
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func itself(v float64) float64 { return v }

// turns measures several variants in turn, several times, so that noise affects all of them, and
// returns the median of each.
func turns(times int, ways ...func() float64) []float64 {
	medians, samples := make([]float64, len(ways)), make([][]float64, len(ways))
	for range times {
		for i, way := range ways {
			samples[i] = append(samples[i], way())
		}
	}
	for i := range ways {
		medians[i] = median(samples[i], itself)
	}
	return medians
}
