package runtime

import (
	"bytes"
	"context"
	"sync"
	"time"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

const (
	spillInline = 64 << 10 // bytes of output kept in memory before an artifact is begun
	spillMax    = 16 << 20 // bytes of a cell's whole output that are kept
)

// kernelSlot is a generation's process: not started yet, starting, up or over.
type kernelSlot struct {
	s          *session
	generation int64
	ctx        context.Context // ends the start
	cancel     context.CancelFunc

	mu     sync.Mutex // guards below
	kernel Kernel
	cell   int64  // that runs, or is about to
	asked  string // reason of an interrupt that came before the cell ran
	over   bool
}

// runCell runs a committed cell. The loop calls it.
func (s *session) runCell(a engine.RunCell) {
	k := s.kernel
	if k == nil || k.generation != a.Generation {
		if k != nil {
			k.end()
		}
		k = &kernelSlot{s: s, generation: a.Generation}
		k.ctx, k.cancel = context.WithCancel(s.ctx)
		s.kernel = k
	}
	k.mu.Lock()
	k.cell, k.asked = a.Cell, ""
	k.mu.Unlock()
	s.feed.open(liveCall{turn: a.Turn, lane: a.Lane, call: a.Started, kind: "cell"})
	workspace := s.state.Session.Workspace
	s.spawn(func() {
		f, died, reason := k.run(a, workspace)
		k.mu.Lock()
		k.cell = 0
		k.mu.Unlock()
		faultPoint("after cell")
		if died {
			s.post(0, engine.KernelDown{Generation: a.Generation, Reason: reason, Partial: &f})
			return
		}
		s.post(0, engine.CellDone{Finished: f})
	})
}

func (k *kernelSlot) run(a engine.RunCell, workspace string) (f klbr.CellFinished, died bool, reason string) {
	f = klbr.CellFinished{Cell: a.Cell, Generation: a.Generation}
	kernel, err := k.ensure(workspace)
	if err != nil {
		if k.isOver() {
			f.Status = klbr.CellLost
			return f, true, "killed"
		}
		e := klbr.AsError(err)
		f.Status = klbr.CellError
		f.Error = &klbr.CellRaised{Name: "KernelError", Message: e.Error(), Traceback: "KernelError: " + e.Error()}
		return f, false, ""
	}
	if reason := k.wasAsked(); reason != "" {
		f.Status, f.Reason = klbr.CellStopped, reason
		return f, false, ""
	}
	spill := &spill{ctx: k.s.ctx, artifacts: k.s.rt.opt.Artifacts}
	sink := cellSink{s: k.s, call: a.Started, generation: a.Generation}
	faultPoint("before cell")
	f, died = kernel.Run(a.Cell, a.Code, time.Duration(a.TimeoutMS)*time.Millisecond, sink, spill)
	f.Cell, f.Generation = a.Cell, a.Generation
	whole, err := spill.finish(f.Truncated)
	if err != nil {
		k.s.log.Error("keep a cell's whole output", "cell", a.Cell, "error", err)
	}
	f.Whole = whole
	if died {
		return f, true, kernel.ExitReason()
	}
	return f, false, ""
}

// ensure starts the process where it does not run yet.
func (k *kernelSlot) ensure(workspace string) (Kernel, error) {
	k.mu.Lock()
	kernel, over := k.kernel, k.over
	k.mu.Unlock()
	if kernel != nil {
		return kernel, nil
	}
	if over {
		return nil, context.Canceled
	}
	kernel, err := k.s.rt.opt.Workers.StartKernel(k.ctx, KernelSpec{
		Session: k.s.name, Generation: k.generation, Workspace: workspace,
	})
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.kernel, over = kernel, k.over
	k.mu.Unlock()
	if over {
		kernel.Kill()
	}
	k.s.post(0, engine.KernelUp{Generation: k.generation, PID: kernel.PID(), Python: kernel.Python()})
	k.s.spawn(func() { k.watch(kernel) })
	return kernel, nil
}

// watch reports a process that goes while no cell runs in it.
func (k *kernelSlot) watch(kernel Kernel) {
	select {
	case <-kernel.Done():
	case <-k.s.ctx.Done():
		kernel.Kill()
		<-kernel.Done()
		return
	}
	k.mu.Lock()
	idle := k.cell == 0
	k.over = true
	k.mu.Unlock()
	if idle {
		k.s.post(0, engine.KernelDown{Generation: k.generation, Reason: kernel.ExitReason()})
	}
}

func (k *kernelSlot) isOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over
}

func (k *kernelSlot) wasAsked() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func (k *kernelSlot) interrupt(cell int64, reason string) {
	k.mu.Lock()
	kernel := k.kernel
	if k.cell == cell {
		k.asked = reason
	}
	k.mu.Unlock()
	if kernel != nil {
		kernel.Interrupt(cell, reason)
	}
}

// end kills the process, or keeps it from starting.
func (k *kernelSlot) end() {
	k.mu.Lock()
	kernel := k.kernel
	k.over = true
	k.mu.Unlock()
	k.cancel()
	if kernel != nil {
		kernel.Kill()
	}
}

func (k *kernelSlot) up() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kernel != nil && !k.over
}

// cellSink hands a cell's output on: pieces into the log, live text to
// subscribers.
type cellSink struct {
	s          *session
	call       int64
	generation int64
}

func (c cellSink) Live(_ int64, text string) { c.s.feed.write(c.call, ModelDelta{Text: text}) }

func (c cellSink) Output(o klbr.CellOutput) {
	c.s.post(0, engine.CellOutput{Generation: c.generation, Output: o})
}

// spill keeps a cell's whole output: in memory while it is small, else in an
// artifact, up to spillMax.
type spill struct {
	ctx       context.Context
	artifacts Artifacts
	buf       bytes.Buffer
	file      Spill
	written   int
	err       error
}

func (w *spill) Write(p []byte) (int, error) {
	n := len(p)
	p = p[:min(len(p), spillMax-w.written)]
	w.written += len(p)
	if w.err != nil || len(p) == 0 {
		return n, nil
	}
	if w.file == nil {
		w.buf.Write(p)
		if w.buf.Len() <= spillInline {
			return n, nil
		}
		if w.file, w.err = w.artifacts.Create(w.ctx); w.err != nil {
			w.file = nil
			return n, nil
		}
		p = w.buf.Bytes()
	}
	_, w.err = w.file.Write(p)
	w.buf = bytes.Buffer{}
	return n, nil
}

// finish keeps the artifact where the records do not hold everything.
func (w *spill) finish(truncated bool) (string, error) {
	switch {
	case w.file == nil && (!truncated || w.err != nil):
		return "", w.err
	case w.file == nil:
		return w.artifacts.PutBytes(w.ctx, w.buf.Bytes())
	case !truncated || w.err != nil:
		w.file.Drop()
		return "", w.err
	}
	return w.file.Keep()
}
