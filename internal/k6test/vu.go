package k6test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/grafana/sobek"
)

// vu is a virtual user: an engine of its own, in which the script was evaluated once. One
// goroutine uses it at a time.
type vu struct {
	*run
	rt      *sobek.Runtime
	exports *sobek.Object
	made    map[string]*sobek.Object // modules
	init    bool                     // the script is being evaluated
	now     context.Context          // of the call that runs
	in      string                   // scenario
	scene   *sobek.Object            // exec.scenario
	data    sobek.Value              // what setup gave, once it was needed
}

// newVU evaluates the script. The error is ErrScript, or what ended the run.
func (r *run) newVU() (*vu, error) {
	v := &vu{run: r, rt: sobek.New(), made: map[string]*sobek.Object{}, init: true, now: r.ctx}
	if r.o.Now != nil {
		v.rt.SetTimeSource(r.o.Now)
	}
	module := v.rt.NewObject()
	env := v.rt.NewObject()
	for name, value := range r.o.Env {
		v.set(env, name, value)
	}
	global := v.rt.GlobalObject()
	v.set(module, "exports", v.rt.NewObject())
	v.set(global, moduleVar, v.module)
	v.set(global, "__ENV", env)
	v.set(global, "open", v.open)
	v.set(global, "console", v.console())
	got, err := v.rt.RunProgram(r.script.program)
	if err == nil {
		body, _ := sobek.AssertFunction(got)
		got, err = v.call(r.ctx, body, module, module.Get("exports"))
	}
	if err != nil {
		return nil, v.wrong(err)
	}
	v.exports, v.init = got.ToObject(v.rt), false
	return v, nil
}

// set sets a property of an object that was made here, which takes it.
func (v *vu) set(o *sobek.Object, name string, value any) {
	if err := o.Set(name, value); err != nil {
		panic(err)
	}
}

// call calls into the script; the end of ctx interrupts it.
func (v *vu) call(ctx context.Context, fn sobek.Callable, args ...sobek.Value) (sobek.Value, error) {
	v.now = ctx
	defer context.AfterFunc(ctx, func() { v.rt.Interrupt(context.Cause(ctx)) })()
	return fn(sobek.Undefined(), args...)
}

// wrong is an error of the engine as one of this package's.
func (v *vu) wrong(err error) error {
	var cut *sobek.InterruptedError
	if errors.As(err, &cut) {
		if cause, ok := cut.Value().(error); ok {
			return cause
		}
	}
	if cause := context.Cause(v.ctx); errors.Is(cause, ErrScript) {
		return cause // the script may have caught it, and thrown something else
	}
	var thrown *sobek.Exception
	if errors.As(err, &thrown) {
		return fmt.Errorf("%w: %s", ErrScript, thrown.String())
	}
	return fmt.Errorf("%w: %w", ErrScript, err)
}

// fault ends the run for what the script did, also if it catches the exception.
func (v *vu) fault(format string, args ...any) *sobek.Object {
	text := fmt.Sprintf(format, args...)
	at := ""
	for _, frame := range v.rt.CaptureCallStack(8, nil) {
		if p := frame.Position(); p.Line > 0 {
			at = fmt.Sprintf(" at %s:%d", p.Filename, p.Line)
			break
		}
	}
	v.stop(fmt.Errorf("%w: %s%s", ErrScript, text, at))
	return v.rt.NewTypeError("%s", text)
}

// options are the script's, checked.
func (v *vu) options() (options, error) {
	text, err := v.toJSON(v.exports.Get("options"))
	if err != nil {
		return options{}, v.wrong(err)
	}
	if text == "" {
		return options{}, fmt.Errorf("%w: it exports no options", ErrScript)
	}
	o, err := parseOptions([]byte(text), func(name string) bool {
		_, ok := sobek.AssertFunction(v.exports.Get(name))
		return ok
	})
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrScript, err)
	}
	return o, nil
}

// once runs setup or teardown if the script has it. data and what it gives are JSON, as
// k6 hands them on.
func (v *vu) once(ctx context.Context, name, data string) (string, error) {
	fn, ok := sobek.AssertFunction(v.exports.Get(name))
	if !ok {
		return "", nil
	}
	in, err := v.fromJSON(data)
	if err != nil {
		return "", v.wrong(err)
	}
	out, err := v.call(ctx, fn, in)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", v.wrong(err)
	}
	text, err := v.toJSON(out)
	if err != nil {
		return "", v.wrong(err)
	}
	return text, nil
}

// iterate runs one iteration of a scenario.
func (v *vu) iterate(name, exec string, i int, data string) error {
	fn, _ := sobek.AssertFunction(v.exports.Get(exec)) // it is one, by the options
	if v.data == nil {
		var err error
		if v.data, err = v.fromJSON(data); err != nil {
			return v.wrong(err)
		}
	}
	v.in = name
	v.module("k6/execution") // which makes v.scene
	v.set(v.scene, "name", name)
	v.set(v.scene, "iterationInTest", i)
	began := time.Now()
	if _, err := v.call(v.ctx, fn, v.data); err != nil {
		return v.wrong(err)
	}
	v.sample("iterations", 1, nil)
	v.sample("iteration_duration", ms(time.Since(began)), nil)
	return nil
}

// sample notes a value with the tags that k6 gives it.
func (v *vu) sample(name string, value float64, tags map[string]string) {
	all := map[string]string{"scenario": v.in}
	for tag, text := range tags {
		all[tag] = text
	}
	v.metrics.add(name, value, all)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (v *vu) toJSON(value sobek.Value) (string, error) {
	if value == nil || sobek.IsUndefined(value) {
		return "", nil
	}
	text, err := v.json("stringify", value)
	if err != nil || sobek.IsUndefined(text) {
		return "", err
	}
	return text.String(), nil
}

func (v *vu) fromJSON(text string) (sobek.Value, error) {
	if text == "" {
		return sobek.Undefined(), nil
	}
	return v.json("parse", v.rt.ToValue(text))
}

func (v *vu) json(method string, arg sobek.Value) (sobek.Value, error) {
	fn, _ := sobek.AssertFunction(v.rt.GlobalObject().Get("JSON").ToObject(v.rt).Get(method))
	return fn(sobek.Undefined(), arg)
}

// ---- what a script finds ----

// strict is an object of which no property may be read that it has not.
func (v *vu) strict(what string, o *sobek.Object) *sobek.Object {
	proxy := v.rt.NewProxy(o, &sobek.ProxyTrapConfig{
		Get: func(o *sobek.Object, name string, _ sobek.Value) sobek.Value {
			value := o.Get(name)
			if value == nil {
				if name == "toJSON" { // asked for by JSON.stringify
					return sobek.Undefined()
				}
				panic(v.fault("%s has no %s here", what, name))
			}
			return value
		},
	})
	return v.rt.ToValue(proxy).ToObject(v.rt)
}

// module is a k6 module, the same each time.
func (v *vu) module(name string) *sobek.Object {
	if m, ok := v.made[name]; ok {
		return m
	}
	m := v.rt.NewObject()
	switch name {
	case "k6":
		v.set(m, "sleep", v.sleep)
	case "k6/data":
		v.set(m, "SharedArray", v.sharedArray)
	case "k6/execution":
		v.execution(m)
	case "k6/http":
		v.http(m)
	case "k6/metrics":
		for _, k := range []kind{counter, gauge, rate, trend} {
			v.set(m, string(k), func(c sobek.ConstructorCall) *sobek.Object { return v.newMetric(k, c) })
		}
	}
	v.made[name] = v.strict(name, m)
	return v.made[name]
}

func (v *vu) execution(m *sobek.Object) {
	v.scene = v.rt.NewObject()
	test, self := v.rt.NewObject(), v.rt.NewObject()
	v.set(test, "abort", func(text string) {
		cause := fmt.Errorf("%w: %s", ErrAborted, text)
		v.stop(cause)
		v.rt.Interrupt(cause)
	})
	v.set(self, "idInTest", v.vus.Add(1))
	v.set(m, "scenario", v.strict("exec.scenario", v.scene))
	v.set(m, "test", v.strict("exec.test", test))
	v.set(m, "vu", v.strict("exec.vu", self))
}

func (v *vu) sleep(c sobek.FunctionCall) sobek.Value {
	seconds := c.Argument(0).ToFloat()
	if math.IsNaN(seconds) || seconds < 0 {
		panic(v.fault("sleep(%v): want a number of seconds", c.Argument(0)))
	}
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-v.now.Done():
	case <-timer.C:
	}
	return sobek.Undefined()
}

func (v *vu) open(path string) string {
	if !v.init {
		panic(v.fault("open(%s): files are opened while the script is evaluated, and later no more", path))
	}
	text, err := v.script.read(path)
	if err != nil {
		panic(v.fault("open(%s): %v", path, err))
	}
	return text
}

// sharedArray makes the array once in a run; every other VU gets a copy.
func (v *vu) sharedArray(c sobek.ConstructorCall) *sobek.Object {
	name := c.Argument(0).String()
	fn, ok := sobek.AssertFunction(c.Argument(1))
	if !ok || !v.init {
		panic(v.fault("SharedArray(%s): want a function, while the script is evaluated", name))
	}
	v.sharing.Lock()
	defer v.sharing.Unlock()
	if _, ok := v.shared[name]; !ok {
		array, err := fn(sobek.Undefined())
		if err != nil {
			panic(err)
		}
		if v.shared[name], err = v.toJSON(array); err != nil || !strings.HasPrefix(v.shared[name], "[") {
			panic(v.fault("SharedArray(%s): want an array", name))
		}
	}
	array, err := v.fromJSON(v.shared[name])
	if err != nil {
		panic(err)
	}
	return array.ToObject(v.rt)
}

func (v *vu) newMetric(k kind, c sobek.ConstructorCall) *sobek.Object {
	name := c.Argument(0).String()
	if !v.init {
		panic(v.fault("metric %s: metrics are made while the script is evaluated, and later no more", name))
	}
	if err := v.metrics.declare(name, k); err != nil {
		panic(v.fault("%v", err))
	}
	o := v.rt.NewObject()
	v.set(o, "name", name)
	v.set(o, "add", func(value sobek.Value, tags map[string]string) {
		var number float64
		switch x := value.Export().(type) {
		case bool:
			if x {
				number = 1
			}
		case int64:
			number = float64(x)
		case float64:
			number = x
		default:
			number = math.NaN()
		}
		if math.IsNaN(number) || math.IsInf(number, 0) || v.init {
			panic(v.fault("%s.add(%v): want a number or a truth value, in a function of the script", name, value))
		}
		v.sample(name, number, tags)
	})
	return v.strict("metric "+name, o)
}

// console prints into the result, each argument as a text.
func (v *vu) console() *sobek.Object {
	c := v.rt.NewObject()
	for _, level := range []string{"debug", "log", "info", "warn", "error"} {
		v.set(c, level, func(call sobek.FunctionCall) sobek.Value {
			words := make([]string, len(call.Arguments))
			for i, a := range call.Arguments {
				words[i] = a.String()
			}
			v.print(level + ": " + strings.Join(words, " "))
			return sobek.Undefined()
		})
	}
	return v.strict("console", c)
}
